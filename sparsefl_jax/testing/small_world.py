"""The small world in which the laws check a method, run by the simulator.

It has five clients of uneven size, a network of two dense layers with a running
statistic, and an initial mask as an earlier stage would hand it on; or an author's own
network, and five of the author's clients. A world keeps what it has compiled and run,
so that all laws share it.
"""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Algorithm, Optimizer, Stage
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import ClientInfo, PyTree, SparseModel
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models import Model, saved_inputs
from sparsefl_jax.simulation import clock, initial_state, placement, round_program
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.system import hardware
from sparsefl_jax.training import local

SIZES = (9, 3, 27, 9, 5)  # one below a batch of 4, one three times the others, a tie
BUDGETS = (0.5, 0.3, 0.5, 0.4, 0.3)
FEATURES, HIDDEN, CLASSES = 8, 16, 4
# Every client is drawn and comes back after a pause; the largest stands beside others.
COHORTS = ((3, 2, 0), (1, 4, 2), (0, 1, 3), (2, 0, 4))


# Compiles in half the time, as programs of a small world run for a moment.
jit = functools.partial(jax.jit, compiler_options=hardware.UNOPTIMIZED)


class World(NamedTuple):
    """A method among its clients, and what the laws have compiled and run."""

    name: str
    make: Callable  # of a model: the method on it
    network: Model
    algorithm: Algorithm  # on the network
    stage: Stage
    model: SparseModel  # what `init` receives
    layers: PyTree  # Python bools: the kernels
    population: placement.Population
    cohorts: np.ndarray  # [rounds, K] int32
    key: jax.Array
    shared: dict  # programs and results by name


def tiny_model() -> Model:
    """Builds two dense layers whose statistics are a running mean of the hidden one.

    Returns:
      A network of 8 features, 16 hidden units and 4 classes.

    Example:
      >>> params, stats = tiny_model().init(jax.random.key(0))
      >>> params['fc1']['kernel'].shape, stats['mean'].shape
      ((8, 16), (16,))
    """
    shapes = {"fc1": (FEATURES, HIDDEN), "fc2": (HIDDEN, CLASSES)}

    def init(key):
        keys = jax.random.split(key, len(shapes))
        params = {}
        for key, (name, shape) in zip(keys, shapes.items(), strict=True):
            kernel = jax.random.normal(key, shape) / jnp.sqrt(float(shape[0]))
            params[name] = {"kernel": kernel, "bias": jnp.zeros(shape[1:], jnp.float32)}
        return params, {"mean": jnp.zeros((HIDDEN,), jnp.float32)}

    def dense(params, x):
        return x @ params["kernel"] + params["bias"][None]

    def layer(name, params, x):
        return saved_inputs.affine(f"{name}/kernel", dense, params[name], x)

    def apply(params, stats, x, *, train, weight=None, key=None):
        hidden, mean = layer("fc1", params, x), stats["mean"]
        if train:  # static branch
            valid = jnp.ones(x.shape[:1], bool) if weight is None else weight > 0
            total = jnp.sum(jnp.where(valid[:, None], hidden, 0.0), 0)
            mean = total / jnp.maximum(jnp.sum(valid, dtype=jnp.float32), 1.0)
            stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean}
        # Half the mean: a whole one would leave the bias without a gradient.
        hidden = jax.nn.tanh(hidden - 0.5 * mean[None])
        return layer("fc2", params, hidden), stats

    macs = {n: {"kernel": s[0] * s[1], "bias": 0} for n, s in shapes.items()}
    return Model(init, apply, macs, name="tiny_model")


def make_world(
    factory: Callable,
    kwargs: dict,
    *,
    optimizer: Optimizer | None = None,
    num_rounds: int = len(COHORTS),
    model: Model | None = None,
    data: FederatedData | None = None,
) -> World:
    """Returns a world of a method and five clients.

    Args:
      factory: `factory(model, optimizer, **kwargs) -> Algorithm`.
      kwargs: of the factory.
      optimizer: the clients'; None for SGD with momentum and a rate that decays.
      num_rounds: of the world, at least 4; the cohorts come again after four.
      model: the network, as it reads the samples of `data`; None for `tiny_model`.
      data: has at least five clients. The world takes the smallest, the largest and
        three between, with all their samples, in batches of 32.

    Raises:
      ValueError: there are too few rounds or clients, or a model without data or data
        without a model.
    """
    check("num_rounds", num_rounds, f"[{len(COHORTS)}, inf)")
    if (model is None) != (data is None):
        name = "model" if model is None else "data"
        raise UserError(f"{name}=None, expected both model and data, or neither")
    own = data is not None
    population = _population(*(_of(data) if own else _draw()))
    model = model if own else tiny_model()
    optimizer = optimizer or local.make_optimizer(
        "sgd", momentum=0.9, schedule=lambda round: 0.1 * 0.9**round
    )

    def make(model):
        return factory(model, optimizer, **kwargs)

    algorithm = make(model)
    cohorts = np.resize(np.array(COHORTS, np.int32), (num_rounds, 3))
    stage = Stage(algorithm, *cohorts.shape, batch_size=32 if own else 4)

    @jit  # one program instead of one for each operation
    def begin(init_key, mask_key):
        params, stats = model.init(init_key)
        mask = masks.bernoulli(mask_key, params, jnp.float32(0.5), model.layers)
        return SparseModel(params, mask, stats)

    name, key = getattr(factory, "__name__", str(factory)), jax.random.key(3)
    first = begin(jax.random.key(1), jax.random.key(2))
    rest = population, cohorts, key, {}
    return World(name, make, model, algorithm, stage, first, model.layers, *rest)


def _draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws each client a cloud of samples."""
    rng, total = np.random.default_rng(0), sum(SIZES)
    y = rng.integers(CLASSES, size=total + 1).astype(np.int32)
    x = rng.normal(size=(total + 1, FEATURES)) + 0.5 * y[:, None]
    return x.astype(np.float32), y, np.array(SIZES, np.int32)


def _of(data: FederatedData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Takes five clients of a data set, in the order of size that `SIZES` has."""
    index, sizes = data.train
    check("the number of clients in data", len(sizes), f"[{len(SIZES)}, inf)")
    spread = np.linspace(0, len(sizes) - 1, len(SIZES)).astype(int)
    ranks = np.argsort(np.argsort(SIZES, kind="stable"))
    clients = np.argsort(sizes, kind="stable")[spread][ranks]
    rows = [index[client, : sizes[client]] for client in clients]
    rows = np.concatenate([*rows, rows[0][:1]])
    return data.x[rows], data.y[rows], sizes[clients].astype(np.int32)


def _population(x: np.ndarray, y: np.ndarray, sizes: np.ndarray):
    """Gives each client its rows in turn; padding points to the last, of no client."""
    # Law `padding` spoils two rows of the two smallest clients that are not theirs.
    width = max(max(sizes), sorted(sizes)[1] + 2)
    index = np.full((len(sizes), width), len(x) - 1, np.int32)
    for client, (size, end) in enumerate(zip(sizes, np.cumsum(sizes), strict=True)):
        index[client, :size] = np.arange(end - size, end)
    ids = np.arange(len(sizes), dtype=np.int32)
    info = ClientInfo(ids, sizes, np.array(BUDGETS, np.float32))
    return placement.Population(x, y, index, info)


def once(make: Callable) -> Callable:
    """Lets the world keep what `make(world, *args)` returned."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def kept(world, *args):
        bound = signature.bind(world, *args)
        bound.apply_defaults()
        name = (make.__name__, *bound.args[1:])
        if name not in world.shared:
            world.shared[name] = make(world, *args)
        return world.shared[name]

    return kept


def plan(world: World, split: bool = False) -> placement.Plan:
    """Plans how the simulator runs this world: one client at a time, on one device.

    If `split`, chunks of two clients run on two devices, if there are two.
    """
    layers, count = world.layers, 2 if split else 1
    on = jax.devices()[:count]
    return placement.make_plan(world.stage, layers, on, count, macs=layers)


@once
def segment(world: World, split: bool) -> Callable:
    """Compiles the simulator's program, `round_program.make_segment`."""
    return jit(round_program.make_segment(plan(world, split)), donate_argnums=2)


@once
def start(world: World, samples: str = "own") -> placement.State:
    """Returns the state before round 0, as NumPy arrays.

    'start' begins from another model: the weights of each leaf in another order, scaled
    and shifted, other statistics, and masks of kernels that keep what the first one
    prunes.
    """
    info, model = world.population.info, world.model
    if samples == "start":
        rng = np.random.default_rng(0)
        turned = jax.tree.map(lambda m, kernel: m ^ kernel, model.mask, world.layers)
        stats = jax.tree.map(lambda v: v + 1, model.stats)
        params = jax.device_get(model.params)
        params = jax.tree.map(
            lambda v: (0.09 - 0.83 * rng.permuted(v)).astype(v.dtype), params
        )
        model = SparseModel(params, turned, stats)
    return jax.device_get(initial_state.start(world.key, plan(world), model, info))


def run(
    world: World, state: placement.State, first: int, count: int = 1, split=False
) -> tuple[placement.State, round_program.RoundLog]:
    """Runs rounds `first` to `first + count - 1` by the simulator; NumPy in and out.

    One program of as many rounds as there are cohorts serves every `count`.
    """
    placed = placement.shardings(plan(world, split), state)
    # The last round and its cohort are repeated.
    steps = np.minimum(np.arange(len(world.cohorts)), count - 1)
    rounds = (first + steps).astype(np.int32)
    given = jax.device_put(state, placed), rounds, world.cohorts[rounds]
    program = segment(world, split)
    rest = {"count": np.int32(count), "rates": world.algorithm.rates(rounds)}
    state, log = jax.device_get(program(world.key, world.population, *given, **rest))
    return state, trees.rows(log, slice(count))


SAMPLES = ("own", "turned", "spread", "start")
LOST = {"even": 0, "odd": 1}  # runs on own samples: rounds, mod 2, that hear nobody


@once
def population_of(world: World, samples: str) -> placement.Population:
    """Returns the population, or the same clients with other samples and labels.

    Each feature of a client's samples is put into another order, scaled and shifted by
    numbers of its own, integers modulo their range, so that neither order nor shares
    stay; 'spread' takes cube roots before, so that no moment stays. 'start' has the
    same samples. A client keeps its set of labels: 'turned' trades their numbers of
    samples, and 'spread' leaves one sample to each label but the first.
    """
    population, spread = world.population, samples == "spread"
    if samples not in ("turned", "spread"):
        return population
    x, y = population.x.copy(), population.y.copy()
    low, span = int(x.min()), int(x.max()) - int(x.min()) + 1
    rng = np.random.default_rng(int(spread))
    shift, scale = rng.uniform(0.2, 1.3, (2, *x.shape[1:]))
    for rows, size in zip(population.index, population.info.num_examples, strict=True):
        rows = rows[:size]
        held, place = np.unique(np.roll(y[rows], 1), return_inverse=True)
        once_each = np.resize(held, y[rows].shape)
        once_each.reshape(-1)[len(held) :] = held[0]
        traded = np.roll(held, 1)[place].reshape(y[rows].shape)
        y[rows] = once_each if spread else traded
        mixed = rng.permuted(x[rows], axis=0)
        if jnp.issubdtype(x.dtype, jnp.floating):
            x[rows] = shift - scale * (np.cbrt(mixed) if spread else mixed)
        else:
            share = (shift - scale * (mixed - low) / span) % 1
            x[rows] = low + np.floor(share * span)
    return population._replace(x=x, y=y)


def strange(x: np.ndarray) -> float:
    """Returns what no sample of x may hold: NaN, or the largest integer."""
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    return np.nan if floating else np.iinfo(x.dtype).max


@once
def path(world: World, samples: str = "own") -> tuple[list, list]:
    """Runs all rounds one by one; returns the states before and after, and the logs."""
    states, logs = [start(world, samples)], []
    for round in range(len(world.cohorts)):
        population = population_of(world, samples)
        if samples in LOST:
            ones = np.ones(world.population.info.index.shape, np.float32)
            deadline = np.float32(0 if round % 2 == LOST[samples] else np.inf)
            late = clock.Clock(clock.Device(ones, ones, ones, ones), deadline)
            population = population._replace(clock=late)
        state, log = run(world._replace(population=population), states[-1], round)
        states.append(state)
        logs.append(trees.rows(log, 0))
    return states, logs
