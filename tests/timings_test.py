"""What is kept of earlier runs survives damage, and what they tell is right."""

import json

import pytest

from sparsefl_jax import timings

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
    lines = [(0, 1, 30.0), (1, 10, 60.0), (1, 20, 70.0), (1, 30, 82.0)]
    keys = ("stage", "round", "seconds")
    told = timings.measured([dict(zip(keys, line, strict=True)) for line in lines])
    assert told["stages"] == [
        {"compile_seconds": None, "seconds_per_round": 30.0},
        {"compile_seconds": pytest.approx(19.0), "seconds_per_round": 1.1},
    ]
