"""The study of adapters: its points, and its tables from records by hand."""

from benchmarks import adapters
from sparsefl_jax.runs.config.defaults import freeze
from studies import adapters as study
from tests.refusals import refused


def test_the_points_differ_in_method_adapters_and_server_alone():
    points = {point.name: point.config for point in study.get_study()}
    names = {name for pair in adapters.PAIRS for name in pair}
    assert names <= points.keys() == study.POINTS.keys()
    for name, config in points.items():
        freeze(config)
        told = config.num_rounds + config.first_stage.get("num_rounds", 0)
        assert (config.seeds, told) == (3, 60)
        assert config.optimizer.learning_rate == study.BEST.get(name, study.RATE)
        assert (config.adapter.rank == 16) == (name not in ("rank-4", "rank-1"))
    tried = study.get_study("tune")
    assert len(tried) == 4 * len(points) and {p.config.seed for p in tried} == {3}
    (base,) = study.get_study("base")
    freeze(base.config)
    assert study.BASE.endswith(f"/{base.name}/seed_0/model.safetensors")
    refused(lambda: study.get_study("all"), "adapters.py:all, expected nothing, tune")


def entry(point, seed, *curve):
    return {"point": point, "seed": seed, "curve": curve, "positions": 0.25}


RECORDS = [
    *(entry("rank-16", s, (1.0, 0.5), (3.0, 0.7 + s / 10)) for s in range(3)),
    *(entry("flasc-0.25", s, (0.5, 0.4), (2.0, 0.8 + s / 10)) for s in range(3)),
]


def test_tables_by_hand(monkeypatch):
    """Rank 16 is at .6, .65 and .7 after 2 Gbit."""
    monkeypatch.setattr(adapters, "PAIRS", adapters.PAIRS[:1])
    first, second = adapters.costs(RECORDS).splitlines()[2:]
    assert first == "| `rank-16` | 80.0 ± 10.0 | 3000 | 25.0 % | 1.0x | - |"
    assert second == "| `flasc-0.25` | 90.0 ± 10.0 | 2000 | 25.0 % | 1.5x | 65.0 |"
    (found,) = adapters.compared(RECORDS).splitlines()[2:]
    assert found == "| `flasc-0.25` - `rank-16` | +10.0 [+10.0, +10.0], p < 0.01 |"
