"""Adapters of a pretrained MiniLM on SST-2: FLASC beside smaller adapters and 8 bits.

python launch.py --study=studies/text_adapters.py:tune --workdir=runs/text_tune
python launch.py --study=studies/text_adapters.py --workdir=runs/text
python launch.py --study=studies/text_adapters.py:again --workdir=runs/text_again
python launch.py --study=studies/text_adapters.py:pooled --workdir=runs/text_pooled
python -m benchmarks.text tuning=runs/text_tune study=runs/text again=runs/text_again
python -m benchmarks.text pooled=runs/text_pooled

The last two commands write the tables of docs/text.md. `models/all-MiniLM-L6-v2` is a
folder with `config.json`, `model.safetensors` and `vocab.txt`; its name sets tokens and
weights alike. Clients train adapters of all queries and values and a new last layer, of
384 x 2 weights; the server steps with Adam (FLASC's code: AdamW). `tune` tries three
rates of Adam on another seed, for half of the rounds, on validation samples; `again`
repeats six points on the seeds 4 to 9, which was decided after the seeds 0 to 2 were
seen; `pooled` is the check beside PyTorch: one client with all sentences.

All points but the pooled ones have 60 rounds. In the comparison at equal bits a budget
is what adapters of rank 16 cost in 60 rounds at 8 bits a value; see benchmarks/text.py.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies.points import Point

FOLDER = "models/all-MiniLM-L6-v2"
ROUNDS, SEEDS, TUNING_SEED = 60, 3, 3
CLIENT_RATE, RATES = 0.03, (0.003, 0.01, 0.03)
# The best mean of the last three evaluations on the validation data of seed 3.
CHOSEN = {"rank-16": 0.003, "rank-2": 0.01, "rank-1": 0.01, "rank-16-8bit": 0.003}
CHOSEN |= {"ffa-16": 0.01, "flasc-0.25": 0.01, "flasc-0.0625": 0.03}
CHOSEN |= {"topk-0.0625": 0.003}

EQUAL = {"weighting": "uniform"}  # as FLASC, whatever a client's number of samples
FEDAVG = {"name": "fedavg"} | EQUAL
FLASC = {"name": "flasc"} | EQUAL
TOPK = {"name": "compressed", "up": "topk", "density": 1 / 16} | EQUAL
POINTS = {  # the method, the rank, which leaves stay as they are, rounds an evaluation
    "rank-16": (FEDAVG, 16, (), 1),
    "rank-2": (FEDAVG, 2, (), 4),
    "rank-1": (FEDAVG, 1, (), 4),
    "rank-16-8bit": ({"name": "quantized", "bits": 8} | EQUAL, 16, (), 4),
    "ffa-16": (FEDAVG, 16, ("*lora_a*",), 2),
    "flasc-0.25": (FLASC | {"density": 1 / 4}, 16, (), 4),
    "flasc-0.0625": (FLASC | {"density": 1 / 16}, 16, (), 4),
    "topk-0.0625": (TOPK, 16, (), 2),
}
AGAIN = ("rank-16", "rank-2", "rank-1", "rank-16-8bit", "flasc-0.25", "flasc-0.0625")


def get_study(arg: str = "") -> list[Point]:
    """Returns the points of the study.

    Args:
      arg: '' for the study, 'tune' for all rates on another seed, 'again' for further
        seeds, 'pooled' for one client with all sentences.

    Raises:
      ValueError: `arg` names no part of the study.
    """
    if arg not in ("", "tune", "again", "pooled"):
        expected = "expected nothing, tune, again or pooled"
        raise ValueError(f"studies/text_adapters.py:{arg}, {expected}")
    if arg == "pooled":
        frozen = {"pooled-rank-16": (), "pooled-head": ("*lora*",)}
        return [Point(name, _pooled(leaves)) for name, leaves in frozen.items()]
    if arg == "tune":
        return [
            Point(f"{name}-rate={rate:g}", _config(name, rate, tuning=True))
            for name in POINTS
            for rate in RATES
        ]
    points = [Point(name, _config(name, CHOSEN[name])) for name in POINTS]
    if arg != "again":
        return points
    points = [point for point in points if point.name in AGAIN]
    for point in points:
        point.config.seed, point.config.seeds = 4, 6
    return points


def _common(rank: int):
    config = default_config()
    config.dataset, config.tokenizer, config.metric = "sst2", FOLDER, "pooled"
    config.model = {"name": "pretrained_encoder", "dropout": 0.0}
    config.adapter.rank, config.adapter.alpha = rank, float(rank)  # their scale is 1
    return config


def _pooled(freeze: tuple[str, ...]):
    """420 steps of 16 sentences, which take a minute on two cores."""
    config = _common(rank=16)
    config.adapter.freeze, config.max_tokens = freeze, 32
    config.num_clients = config.cohort_size = config.num_rounds = config.eval_every = 1
    config.local_steps, config.batch_size, config.seeds = 420, 16, SEEDS
    config.optimizer = {"name": "adam", "learning_rate": 0.001}
    return config


def _config(name: str, rate: float, tuning: bool = False):
    algorithm, rank, freeze, every = POINTS[name]
    config = _common(rank)
    config.adapter.whole = ("score/*",)  # the pooler stays as it is
    config.adapter.freeze, config.max_tokens = freeze, 24
    config.num_clients, config.cohort_size = 100, 10
    config.partition = {"name": "dirichlet", "alpha": 0.1}
    config.local_steps, config.batch_size = 5, 8
    config.optimizer.learning_rate = CLIENT_RATE
    config.server_optimizer = {"name": "adam", "learning_rate": rate}
    config.algorithm = dict(algorithm)
    config.num_rounds, config.eval_every, config.seeds = ROUNDS, every, SEEDS
    if tuning:
        config.num_rounds, config.eval_every = ROUNDS // 2, 5
        config.seed, config.seeds, config.val_fraction = TUNING_SEED, 1, 0.015
    return config
