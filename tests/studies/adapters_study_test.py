"""The study of adapters: its points, and its tables from records by hand."""

from benchmarks import adapters
from sparsefl_jax.config.defaults import freeze
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
        assert (config.adapter.rank == 16) == (name not in ("rank-4", "rank-1"))
    tried = study.get_study("tune")
    assert len(tried) == 4 * len(points) and {p.config.seed for p in tried} == {3}
    (base,) = study.get_study("base")
    freeze(base.config)
    assert study.BASE.endswith(f"/{base.name}/seed_0/model.safetensors")
    refused(lambda: study.get_study("all"), "adapters.py:all, expected nothing, tune")
