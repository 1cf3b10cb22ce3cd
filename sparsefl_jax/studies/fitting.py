"""Sets the rounds of a study's points to what their budgets pay for.

Pilots run one after another in this process, or side by side as the points will.
"""

import copy
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparsefl_jax.core.validate import one_line
from sparsefl_jax.runs import experiment, fit_rounds, run_directory
from sparsefl_jax.runs.config import plain
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import files, interrupt

_POLL = 0.2  # seconds between looks at processes and jobs


def fitted(
    points: Sequence[Point],
    workdir: Path,
    shown: dict,
    say: Callable,
    start: Callable | None = None,
    at_once: int = 1,
    show: bool = True,
) -> list[Point]:
    """Returns the points with the numbers of rounds that their budgets pay for.

    What is found is written to the study's file at once, as pilots take their time.

    Args:
      points: all of the study.
      workdir: its folder.
      shown: what its pages need, see `points.write`.
      say: is called with lines on the progress.
      start: `(names, fit=True) -> jobs`, which fits points elsewhere; None: here.
      at_once: how many of these there are at a time.
      show: whether to show the rounds of pilots that run here.

    Raises:
      ValueError: names a point that cannot be fitted, and why.
      interrupt.StoppedError: after Ctrl-C or SIGTERM.
    """
    found = with_kept(points, workdir)
    names = {point.name for point in points}
    there = (workdir / on_disk.FILE).exists()
    old = [p.name for p in on_disk.read(workdir)[0]] if there else []
    if left := [name for name in old if name not in names]:
        say(f"not in this study, and so not on its page: {', '.join(left)}")
    on_disk.write(workdir, found, shown)
    places = [i for i, p in enumerate(found) if fit_rounds.wanted(p.config)]
    waiting = [found[place] for place in places]
    elsewhere = [p for p in waiting if start and not _has_followers(p.config)]
    results = _one_by_one([p for p in waiting if p not in elsewhere], say, show)
    if elsewhere:
        side_by_side = _side_by_side(elsewhere, workdir, start, at_once)
        results = itertools.chain(side_by_side, results)
    for name, config, said in results:
        (place,) = (i for i in places if found[i].name == name)
        say(f"{name}: {said}")
        found[place] = found[place]._replace(config=config)
        on_disk.write(workdir, found, shown)
    return found


def with_kept(points: Sequence[Point], workdir: Path) -> list[Point]:
    """Returns the points with the rounds that the folder's study has found before."""
    if not (workdir / on_disk.FILE).exists():
        return list(points)
    old = {p.name: p.config for p in on_disk.read(workdir)[0]}
    return [
        point._replace(config=kept)
        if point.name in old
        and (kept := fit_rounds.kept(point.config, old[point.name]))
        else point
        for point in points
    ]


def fit_point(workdir: str | Path, name: str) -> None:
    """Fits a point of a study, and leaves what it found, or why not, in `fits`.

    Args:
      workdir: the study's folder.
      name: of the point.
    """
    point = on_disk.named(workdir, name)
    try:
        config, said = fit_rounds.fitted(point.config, experiment.build, progress=True)
        found = {"config": plain.plain(config), "said": said}
    except Exception as error:  # a method of one's own may raise any
        found = {"error": one_line(error) or type(error).__name__}
    file = _file(Path(workdir), name)
    file.parent.mkdir(exist_ok=True)
    files.write_text(file, json.dumps(found))


def _has_followers(config) -> bool:
    """Tells whether other fields, as FedSparsify's, follow the number of rounds.

    A file keeps plain values, so that a point read from it has lost what follows what.
    """
    longer = copy.deepcopy(config)
    longer.num_rounds += 1
    return bool({*run_directory.differences(config, longer)} - {"num_rounds"})


def _one_by_one(points: Sequence[Point], say: Callable, show: bool) -> Iterator[tuple]:
    for place, point in enumerate(points, 1):
        say(f"fitting point {place} of {len(points)}: {point.name}")
        with on_disk.naming(point):
            config, said = fit_rounds.fitted(
                point.config, experiment.build, progress=show
            )
        yield point.name, config, said


def _side_by_side(
    points: Sequence[Point], workdir: Path, start: Callable, at_once: int
) -> Iterator[tuple]:
    waiting, running = list(points), []
    with interrupt.listening("asking the pilots to end") as stopped:
        try:
            while waiting or running:
                if chosen := waiting[: at_once - len(running)]:
                    waiting = waiting[len(chosen) :]
                    for point in chosen:
                        _file(workdir, point.name).unlink(missing_ok=True)
                    jobs = start([point.name for point in chosen], fit=True)
                    running += zip(chosen, jobs, strict=True)
                for point, job in [pair for pair in running if pair[1].done()]:
                    running.remove((point, job))
                    yield point.name, *_read(workdir, point, job)
                if number := stopped():
                    raise interrupt.StoppedError("the study has stopped", number)
                time.sleep(_POLL)
        finally:  # also if one of them cannot be fitted
            for _, job in running:
                job.cancel()
            while not all(job.done() for _, job in running):
                time.sleep(_POLL)


def _read(workdir: Path, point: Point, job) -> tuple:
    file = _file(workdir, point.name)
    if not file.exists():
        raise ValueError(f"point {point.name!r}: its pilot {job.fate()}")
    found = files.read_json(file)
    file.unlink()
    if "error" in found:
        raise ValueError(f"point {point.name!r}: {found['error']}")
    return on_disk.configuration(found["config"]), found["said"]


def _file(workdir: Path, name: str) -> Path:
    return workdir / "fits" / f"{name}.json"
