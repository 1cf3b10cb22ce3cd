"""Timings of earlier runs survive damage, and give correct estimates."""

import json
import time

import jax
import pytest

from sparsefl_jax.runs.plan import timings

VALUE = {"stages": [{"compile_seconds": None, "seconds_per_round": 2.0}]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "timings.json"


def test_what_was_kept_is_recalled(cache):
    assert timings.recall("a") is None
    timings.remember("a", VALUE)
    timings.remember("b", {"stages": []})
    assert timings.recall("a") == VALUE and timings.recall("b") == {"stages": []}
    assert [p.name for p in cache.parent.iterdir()] == ["timings.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"a": {"stages": [{"compile_seconds"',
        "[1, 2]",
        '{"a": 3}',
        '{"a": {"stages": [{"compile_seconds": null, "seconds_per_round": "2"}]}}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(cache, text):
    cache.parent.mkdir()
    cache.write_bytes(text.encode(errors="surrogateescape"))
    assert timings.recall("a") is None
    timings.remember("a", VALUE)
    assert timings.recall("a") == VALUE


def test_the_oldest_make_room(cache):
    for i in range(203):
        timings.remember(str(i), VALUE)
    assert timings.recall("2") is None and timings.recall("3") == VALUE
    assert len(json.loads(cache.read_text())) == 200


def test_a_directory_that_can_not_be_written_is_no_error(cache):
    cache.parent.write_text("a file stands there")
    timings.remember("a", VALUE)
    assert timings.recall("a") is None


def test_what_changes_the_program_changes_the_name():
    config = {"seed": 0, "epochs": 1, "algorithm": {"name": "nst"}, "num_rounds": 9}
    name = timings.digest(config)
    assert timings.digest(config | {"seed": 1, "num_rounds": 400}) == name
    assert timings.digest(config | {"epochs": 2}) != name
    assert timings.digest(config | {"algorithm": {"name": "pdst"}}) != name


def test_compilation_is_told_from_rounds():
    lines = [(0, 1, 30.0, 25.0), (1, 10, 60.0, 20.0)]
    lines += [(1, 20, 70.0, 0.0), (1, 30, 84.0, 2.0)]
    keys = ("stage", "round", "seconds", "compile_seconds")
    told = timings.measured([dict(zip(keys, line, strict=True)) for line in lines])
    assert told["stages"] == [
        {"compile_seconds": 25.0, "seconds_per_round": 5.0},
        {"compile_seconds": 22.0, "seconds_per_round": pytest.approx(1.0)},
    ]


def test_time_spent_on_programs_counts_once_and_only_while_it_is_asked_for():
    span = "/jax/core/compile/jaxpr_trace_duration"
    tell = jax.monitoring.record_event_time_span
    with timings.compiling() as taken:
        tell(span, 100.0, 101.0)
        tell(span, 101.5, 102.0)
        tell(span, 99.0, 103.0)  # both were inside
        tell("/jax/core/compile/backend_compile_duration", 104.0, 110.0)
        tell("/another/event", 104.0, 500.0)
        assert taken() == pytest.approx(4.0 + 6.0)
        assert taken() == 0
        start = time.perf_counter()
        jax.jit(lambda x: x * 3.25 - 1)(1.0)
        assert 0 < taken() < time.perf_counter() - start
    tell(span, 0.0, 1.0)
    assert taken() == 0
