"""The set-ups that benchmarks time, and their federated rounds on random samples."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, samples
from benchmarks.own import linen, nnx
from sparsefl_jax.data import cohorts
from sparsefl_jax.models import programs
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
    "strided_cnn": Network(16, CIFAR),
    "groupnorm_cnn": Network(16, CIFAR),
    "resnet18_groupnorm": Network(32, CIFAR),
    "separable_cnn": Network(16, CIFAR),
    "gru": Network(16, CIFAR),
    "transformer": Network(16, CIFAR),
}
FORMS = ("ours", "linen", "nnx")
WRITTEN = {  # classes of `own/linen.py` and `own/nnx.py`
    "simple_cnn": "SimpleCNN",
    "strided_cnn": "StridedCNN",
    "groupnorm_cnn": "GroupNormCNN",
    "resnet18_groupnorm": "ResNet18",
    "separable_cnn": "SeparableCNN",
    "gru": "GRU",
    "transformer": "Transformer",
}
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
    written: str = "ours"  # one of `FORMS`: the package's network, or one's own
    rounds: int = 1  # of a call
    seeds: int = 0  # in one program, as in `examples/seeds.ipynb`; 0: one, not mapped

    @property
    def batch(self) -> int:
        """Returns the samples of a minibatch."""
        return self.batch_size or NETWORKS[self.model].batch_size

    @property
    def drawn(self) -> int:
        """Returns the clients of a round."""
        return self.cohort or 4 * jax.device_count()

    @property
    def steps(self) -> int:
        """Returns the minibatches of a call, of all its clients."""
        rounds = self.rounds * max(self.seeds, 1)
        return rounds * self.drawn * -(-self.samples // self.batch)

    @property
    def sizes(self) -> str:
        """Returns the columns of tables: clients, cohort and batch."""
        return f"{self.clients}, {self.drawn}, {self.batch}"


SPAFL = Workload("lenet5_caffe", 100, 640, cohort=10, momentum=0.9)
FEDSPARSIFY = partial(sfl.fedsparsify_global, density=0.1, rounds=200)
FIVE = {  # of published work
    "pfl": Workload("simple_cnn", 1000, 50, cohort=50),
    "femnist": Workload("femnist_cnn", 3400, 198, cohort=10),
    "resnet18_100": Workload("resnet18", 100, 64, cohort=10),
    "lenet5_spafl": SPAFL._replace(method=sfl.spafl),
    "mlp_fedsparsify": Workload("mlp", 100, 600, cohort=10, method=FEDSPARSIFY),
}
SETUPS = FIVE | {
    "lenet5_fedavg": SPAFL,
    "mlp": Workload("mlp", 100, 600),
    "lenet5_caffe": Workload("lenet5_caffe", 100, 640),
    "mnistnet": Workload("mnistnet", 100, 600),
    "ic": Workload("ic", 100, 640),
    "conv4": Workload("conv4", 20, 160),
    "fedsparsify_cnn": Workload("fedsparsify_cnn", 20, 128),
    "resnet18": Workload("resnet18", 20, 128),
    "vgg16": Workload("vgg16", 20, 64),
}
OWN = {  # networks of `own/`
    "simple_cnn": Workload("simple_cnn", 100, 100, 8),
    "strided_cnn": Workload("strided_cnn", 100, 160, 8),
    "groupnorm_cnn": Workload("groupnorm_cnn", 100, 160, 8),
    "resnet18_groupnorm": Workload("resnet18_groupnorm", 20, 64, 4),
    "separable_cnn": Workload("separable_cnn", 100, 160, 8),
    "gru": Workload("gru", 100, 160, 8),
    "transformer": Workload("transformer", 100, 160, 8),
}


class Round(NamedTuple):
    """A compiled round, or a segment of several."""

    start: Callable  # (SparseModel | None) -> state
    step: Callable  # (state, t) -> (state, log)
    steps: int  # minibatches of a call
    model: Any
    stage: sfl.Stage
    data: Any
    compile_seconds: float
    bytes: dict[str, int]  # as XLA plans them: arguments, results, temporaries
    program: str  # as XLA compiled it

    @property
    def flops(self) -> float:
        """Returns the FLOPs of a step of the dense network, 6 per multiply-add."""
        return 6.0 * ledger.macs_per_sample(self.model.macs) * self.stage.batch_size


def make_data(setup: Workload, tests: int = 10):
    """Draws random samples, `setup.samples` per client and `tests` for evaluation."""
    network = NETWORKS[setup.model]
    x, y, rows = samples.draw(
        setup.clients, setup.samples, network.shape, network.classes
    )
    test = np.arange(tests) % len(x)
    return sfl.from_arrays(
        x,
        y,
        x_test=x[test],
        y_test=y[test],
        num_classes=network.classes,
        partition=list(rows),
        test_split="pooled",
    )


def make_model(setup: Workload, data, **kwargs):
    """Builds the network; `kwargs` are arguments of its own."""
    network = NETWORKS[setup.model]
    example = jax.ShapeDtypeStruct((3, *network.shape), np.float32)
    if setup.written == "linen":
        model = sfl.Model.from_flax(getattr(linen, WRITTEN[setup.model])(), example)
    elif setup.written == "nnx":
        model = sfl.Model.from_nnx(getattr(nnx, WRITTEN[setup.model]), example)
    else:
        kwargs |= {} if setup.widths is None else {"widths": setup.widths}
        name, options = OURS.get(setup.model, (setup.model, {}))
        shape = network.classes, network.shape
        model = sfl.models.build(name, *shape, **options, **kwargs)
    return model.reading(sfl.data.make_preprocess(data.mean, data.std))


def make_stage(setup: Workload, model, rounds: int) -> sfl.Stage:
    """Returns a stage in which each client of a cohort trains for one epoch."""
    optimizer = sfl.training.make_optimizer(
        "sgd", learning_rate=0.01, momentum=setup.momentum
    )
    method = setup.method(model, optimizer)
    return sfl.Stage(method, rounds, setup.drawn, 1, setup.batch)


def prepare(
    setup: Workload, chunk="auto", model=None, data=None, devices=None
) -> Round:
    """Compiles rounds of one epoch; the same cohorts take part in every call."""
    data = make_data(setup) if data is None else data
    model = make_model(setup, data) if model is None else model
    stage = make_stage(setup, model, setup.rounds)
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    if chunk == "auto":
        chunk = 1 if _in_turn(model, stage, devices) else stage.cohort_size
    plan = placement.make_plan(stage, layers, devices, int(chunk))
    budgets = np.resize(np.float32(setup.budgets), setup.clients)
    population = placement.make_population(plan, data, budgets)
    key = jax.random.key(0)

    def start(sparse=None):
        sparse = initial_state.initial_model(key, model) if sparse is None else sparse
        sparse = jax.tree.map(jax.numpy.asarray, sparse)
        state = initial_state.start(key, plan, sparse, population.info)
        if not setup.seeds:
            return state
        return jax.tree.map(lambda v: jax.numpy.stack([v] * setup.seeds), state)

    first = np.arange(setup.rounds, dtype=np.int32)
    draw = lambda key: cohorts.cohorts(key, stage, setup.clients, first)  # noqa: E731
    segment, root, ids = round_program.make_segment(plan), key, draw(key)
    if setup.seeds:
        segment = jax.vmap(segment, in_axes=(0, None, 0, None, 0))
        root = jax.random.split(key, setup.seeds)
        ids = jax.numpy.stack([draw(key) for key in root])
    begun = time.perf_counter()
    segment = jax.jit(segment, donate_argnums=2)
    compiled = segment.lower(root, population, start(), first, ids).compile()
    compile_seconds = time.perf_counter() - begun

    def step(state, t):
        return compiled(root, population, state, first + np.int32(t), ids)

    planned = compiled.memory_analysis()
    sizes = {
        "arguments": planned.argument_size_in_bytes,
        "results": planned.output_size_in_bytes,
        "temporaries": planned.temp_size_in_bytes,
    }
    made = model, stage, data, compile_seconds, sizes, compiled.as_text()
    return Round(start, step, setup.steps, *made)


def _in_turn(model, stage: sfl.Stage, devices) -> bool:
    """Returns whether a run on these devices would train one client after another."""
    platform = placement.stage_devices(stage, devices)[0].platform
    params = jax.tree.leaves(initial_state.initial_shapes(model).params)
    macs = ledger.macs_per_sample(model.macs) * stage.batch_size
    return programs.in_turn(platform, sum(leaf.size for leaf in params), macs)


def seconds(one: Round, repeats: int) -> np.ndarray:
    """Returns the seconds [repeats] of rounds of one set-up."""
    return measure.in_turns({"": going(one)}, repeats)[""]


def going(one: Round, sparse=None) -> Callable:
    """A function whose calls run round after round from a fresh state.

    Args:
      one: a round from `prepare`.
      sparse: the model before the first round; None for a new network.

    Returns:
      `() -> RoundLog`, which waits for the devices.
    """
    state, t = one.start(sparse), 0

    def call():
        nonlocal state, t
        state, log = one.step(state, t)
        t += one.stage.num_rounds
        jax.block_until_ready((state, log))
        return log

    return call
