"""The set-ups that benchmarks time, and their federated rounds on random samples."""

import inspect
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure as measure  # starts a device for every core
from benchmarks import samples
from benchmarks.own import linen, nnx
from sparsefl_jax.data import cohorts
from sparsefl_jax.models import convolution
from sparsefl_jax.simulation import initial_state, placement, round_program
from sparsefl_jax.wire import ledger


class Network(NamedTuple):
    """The usual batch and samples of a network."""

    batch_size: int
    shape: tuple[int, ...] = (28, 28, 1)
    classes: int = 10


CIFAR = (32, 32, 3)
NETWORKS = {
    "mlp": Network(32),
    "mnistnet": Network(32),
    "lenet5_caffe": Network(64),
    "conv4": Network(16, CIFAR),
    "ic": Network(64),
    "fedsparsify_cnn": Network(32, CIFAR),
    "sa": Network(64, (768,), 3),
    "femnist_cnn": Network(20, classes=62),
    "simple_cnn": Network(10, CIFAR),
    "small_cnn": Network(32, CIFAR),
    "resnet18": Network(32, CIFAR),
    "vgg16": Network(32, CIFAR),
    # As a user would write them, see `own/`; of some the package has the same.
    "resnet18_groupnorm": Network(32, CIFAR),
    "separable_cnn": Network(16, CIFAR),
    "gru": Network(16, CIFAR),
    "transformer": Network(16, CIFAR),
    "pretrained_encoder": Network(8, (24,), 2),
}
FORMS = {"linen": linen.NETWORKS, "nnx": nnx.NETWORKS}
OURS = {"resnet18_groupnorm": ("resnet18", {"norm": "group"})}


class Workload(NamedTuple):
    """A network and its training."""

    model: str  # of `NETWORKS`
    clients: int
    samples: int  # of every client
    cohort: int = 0  # 0 for four clients a device
    method: Callable = sfl.fedavg
    momentum: float | None = None
    widths: tuple[int, ...] | None = None  # None for the network's default
    batch_size: int = 0  # 0 for the network's default
    budgets: tuple[float, ...] = (1.0,)  # dealt to the clients in turn
    written: str = "ours"  # or one of `FORMS`: the network as a user would write it
    rounds: int = 1  # of a call
    seeds: int = 0  # in one program, as in `docs/how_to/seeds.md`; 0: one, not mapped
    devices: int = 0  # 0 for all
    dtype: str = "float32"  # of the network's computations

    @property
    def batch(self) -> int:
        """Returns the samples of a minibatch."""
        return self.batch_size or NETWORKS[self.model].batch_size

    @property
    def drawn(self) -> int:
        """Returns the clients of a round."""
        return self.cohort or 4 * len(self.on)

    @property
    def on(self) -> list:
        """Returns the devices that train.

        Raises:
          SystemExit: there are not as many.
        """
        found = jax.devices()
        if self.devices > len(found):
            sys.exit(f"error: devices={self.devices}, expected at most {len(found)}")
        return found[: self.devices or None]

    @property
    def steps(self) -> int:
        """Returns the minibatches of a call, of all its clients."""
        return self.all_rounds * self.drawn * -(-self.samples // self.batch)

    @property
    def all_rounds(self) -> int:
        """Returns the rounds of a call, of all its seeds."""
        return self.rounds * max(self.seeds, 1)

    @property
    def sizes(self) -> str:
        """Returns the columns of tables: clients, cohort and batch."""
        return f"{self.clients}, {self.drawn}, {self.batch}"


def arguments(name: str) -> dict:
    """Returns what the factory of a method needs, for two minibatches of a client."""
    needed = {"clients": 40, "density": 0.5, "rounds": 100, "adjust_until": 50}
    parameters = inspect.signature(sfl.ALGORITHMS[name]).parameters
    bare = {name for name, p in parameters.items() if p.default is p.empty}
    chosen = {key: value for key, value in needed.items() if key in bare}
    if name == "prunefl_initial":
        chosen |= {"num_batches": 2, "max_iterations": 1}
    return chosen


SLICED = ("heterofl", "fjord", "fedrolex", "fiarse")
BUDGETS = {
    **dict.fromkeys(("hetero_spdst", "hetero_jmwst"), (0.1, 0.15, 0.2)),
    **dict.fromkeys(SLICED, (0.2, 0.4, 0.6, 0.8, 1.0)),
}


def of_method(name: str) -> Workload:
    """Returns a method with little training, by which its own work shows."""
    setup = Workload("lenet5_caffe", 40, 128, cohort=4, momentum=0.9)
    if name == "scaffold":  # trains by SGD without momentum
        setup = setup._replace(momentum=None)
    method = partial(sfl.ALGORITHMS[name], **arguments(name))
    return setup._replace(method=method, budgets=BUDGETS.get(name, (1.0,)))


SPAFL = Workload("lenet5_caffe", 100, 640, cohort=10, momentum=0.9)
FEDSPARSIFY = partial(sfl.fedsparsify_global, density=0.1, rounds=200)
PFL, MLP = Workload("simple_cnn", 1000, 50, cohort=50), Workload("mlp", 100, 600)
RESNET = Workload("resnet18", 100, 64, cohort=10)
COHORT = Workload("mlp", 10_000, 20, batch_size=20)
OWN = {
    "simple_cnn": Workload("simple_cnn", 100, 100, 8),
    "resnet18_groupnorm": Workload("resnet18_groupnorm", 20, 64, 4),
    "separable_cnn": Workload("separable_cnn", 100, 160, 8),
    "gru": Workload("gru", 100, 160, 8),
    "transformer": Workload("transformer", 100, 160, 8),
}
TABLES = {
    "published": {
        "pfl": PFL,
        "femnist": Workload("femnist_cnn", 3400, 198, cohort=10),
        "resnet18_100": RESNET,
        "lenet5_spafl": SPAFL._replace(method=sfl.spafl),
        "mlp_fedsparsify": Workload("mlp", 100, 600, cohort=10, method=FEDSPARSIFY),
    },
    "bfloat16": {
        "pfl_bfloat16": PFL._replace(dtype="bfloat16"),
        "resnet18_bfloat16": RESNET._replace(dtype="bfloat16"),
    },
    "networks": {
        "lenet5_fedavg": SPAFL,
        "mlp": MLP,
        "lenet5_caffe": Workload("lenet5_caffe", 100, 640),
        "mnistnet": Workload("mnistnet", 100, 600),
        "ic": Workload("ic", 100, 640),
        "conv4": Workload("conv4", 20, 160),
        "fedsparsify_cnn": Workload("fedsparsify_cnn", 20, 128),
        "resnet18": Workload("resnet18", 20, 128),
        "vgg16": Workload("vgg16", 20, 64),
    },
    "own": {
        f"{name}-{form}": setup._replace(written=form)
        for name, setup in OWN.items()
        for form in ("ours", *FORMS)
        if name in FORMS.get(form, ("simple_cnn", "resnet18_groupnorm"))
    },
    "methods": {name: of_method(name) for name in sfl.ALGORITHMS},
    "cohorts": {
        f"{name}-{cohort}": COHORT._replace(cohort=cohort, widths=widths)
        for name, widths in (("tiny", (8,)), ("mlp", None))
        for cohort in (1, 10, 100, 1000, 10_000)
    },
    "segments": {
        "pfl-1": PFL._replace(devices=1),
        "pfl-10": PFL._replace(devices=1, rounds=10),
        "pfl-50": PFL._replace(devices=1, rounds=50),
        "pfl-50-seeds": PFL._replace(devices=1, rounds=50, seeds=3),
    },
    "toys": {  # to see that a benchmark runs
        "toy": Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8),
        "toy-seeds": Workload("mlp", 8, 12, 4, widths=(4,), rounds=2, seeds=2),
    },
}
SETUPS = {name: one for table in TABLES.values() for name, one in table.items()}


def chosen(names: Iterable[str], tables: dict[str, dict]) -> list[str]:
    """Returns the names of set-ups; the name of a table stands for all of its own."""
    return [name for each in names for name in tables.get(each, (each,))]


class Round(NamedTuple):
    """A compiled round, or a segment of several."""

    start: Callable  # () -> state
    step: Callable  # (state, t) -> (state, log)
    steps: int  # minibatches of a call
    model: Any
    stage: sfl.Stage
    compile_seconds: float
    bytes: dict[str, int]  # as XLA plans them: arguments, results, temporaries

    @property
    def flops(self) -> float:
        """Returns the FLOPs of a step of the dense network."""
        return ledger.flops_per_sample(self.model) * self.stage.batch_size


def make_data(setup: Workload):
    """Draws random samples, `setup.samples` per client and ten for evaluation."""
    network = NETWORKS[setup.model]
    x, y, rows = samples.draw(
        setup.clients, setup.samples, network.shape, network.classes
    )
    test = np.arange(10) % len(x)
    return sfl.from_arrays(
        x,
        y,
        x_test=x[test],
        y_test=y[test],
        num_classes=network.classes,
        partition=list(rows),
        test_split="pooled",
    )


def make_model(setup: Workload, data):
    """Builds the network."""
    network = NETWORKS[setup.model]
    example = jax.ShapeDtypeStruct((3, *network.shape), np.float32)
    if setup.written == "linen":
        model = sfl.Model.from_flax(linen.NETWORKS[setup.model](), example)
    elif setup.written == "nnx":
        model = sfl.Model.from_nnx(nnx.NETWORKS[setup.model], example)
    else:
        widths = {} if setup.widths is None else {"widths": setup.widths}
        name, options = OURS.get(setup.model, (setup.model, {}))
        shape = network.classes, network.shape
        model = sfl.models.build(name, *shape, **options, **widths)
    model = model.with_dtype(setup.dtype)
    return model.with_preprocess(sfl.data.make_preprocess(data.mean, data.std))


def make_stage(setup: Workload, model, rounds: int) -> sfl.Stage:
    """Returns a stage in which each client of a cohort trains for one epoch."""
    optimizer = sfl.training.make_optimizer(
        "sgd", learning_rate=0.01, momentum=setup.momentum
    )
    method = setup.method(model, optimizer)
    return sfl.Stage(method, rounds, setup.drawn, 1, setup.batch)


def prepare(setup: Workload, chunk="auto", model=None, data=None) -> Round:
    """Compiles rounds of one epoch; the same cohorts take part in every call."""
    devices = setup.on
    data = make_data(setup) if data is None else data
    model = make_model(setup, data) if model is None else model
    stage = make_stage(setup, model, setup.rounds)
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    if chunk == "auto":
        macs = ledger.macs_per_sample(model) * stage.batch_size
        in_turn = convolution.in_turn(devices[0].platform, macs)
        chunk = 1 if in_turn else stage.cohort_size
    sizes = data.train.size  # of which runs know the steps when they compile, too
    plan = placement.make_plan(stage, layers, devices, int(chunk), sizes=sizes)
    budgets = np.resize(np.float32(setup.budgets), setup.clients)
    population = placement.make_population(plan, data, budgets)
    key = jax.random.key(0)

    def start():
        sparse = initial_state.initial_model(key, model)
        state = initial_state.start(key, plan, sparse, population.info)
        if not setup.seeds:
            return state
        return jax.tree.map(lambda v: jax.numpy.stack([v] * setup.seeds), state)

    first = np.arange(setup.rounds, dtype=np.int32)
    draw = lambda key: cohorts.cohorts(key, stage, setup.clients, first)  # noqa: E731
    segment, root, ids = round_program.make_segment(plan), key, draw(key)
    if setup.seeds:
        axes = 0, None, 0, None, 0, None, None, None
        segment = jax.vmap(segment, in_axes=axes)
        root = jax.random.split(key, setup.seeds)
        ids = jax.numpy.stack([draw(key) for key in root])
    begun = time.perf_counter()
    segment = jax.jit(segment, donate_argnums=2)
    rest = ids, None, None, stage.algorithm.rates(first)
    compiled = segment.lower(root, population, start(), first, *rest).compile()
    compile_seconds = time.perf_counter() - begun

    def step(state, t):
        return compiled(root, population, state, first + np.int32(t), *rest)

    planned = compiled.memory_analysis()
    sizes = {
        "arguments": planned.argument_size_in_bytes,
        "results": planned.output_size_in_bytes,
        "temporaries": planned.temp_size_in_bytes,
    }
    return Round(start, step, setup.steps, model, stage, compile_seconds, sizes)


def going(one: Round) -> Callable:
    """A function whose calls run round after round from a fresh state.

    Args:
      one: a round from `prepare`.

    Returns:
      `() -> RoundLog`, which waits for the devices and fetches the log, as a run does.
    """
    state, t = one.start(), 0

    def call():
        nonlocal state, t
        state, log = one.step(state, t)
        t += one.stage.num_rounds
        jax.block_until_ready(state)
        return jax.device_get(log)

    return call
