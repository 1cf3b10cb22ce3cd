"""Selects the evaluations whose accuracy counts: those of a run's last stage."""

from collections.abc import Sequence

from sparsefl_jax.report.load import Record, Run, finite


def final_evals(run: Run) -> list[Record]:
    """Returns the evaluations of the last stage, in the order of the rounds.

    Models of earlier stages are not results. A run that is still in its first stage has
    none yet.

    Example:
      >>> from pathlib import Path
      >>> evals = [dict(stage=0, round=1, models={}), dict(stage=1, round=1, models={})]
      >>> run = Run(Path("a"), [], evals, [0, 1], {}, {}, None)
      >>> [record["stage"] for record in final_evals(run)]
      [1]
    """
    first = (run.config.get("first_stage") or {}).get("name")
    earlier = bool(first) + len(run.config.get("middle_stages") or {})
    last = max([earlier, *(record["stage"] for record in run.evals)])
    return [record for record in run.evals if record["stage"] == last]


def last_eval(run: Run) -> Record:
    """Returns the last evaluation of the last stage; one without models if none."""
    return (final_evals(run) or [{"models": {}}])[-1]


def accuracy(record: Record | None, model: str | None = None) -> float | None:
    """Returns the accuracy of a deployed model, or the headline; None if unknown."""
    if record is None:
        return None
    found = record if model is None else record["models"].get(model, {})
    return found["accuracy"] if finite(found.get("accuracy")) else None


def best_eval(run: Run, model: str | None = None) -> Record | None:
    """Returns the evaluation of the best round of the last stage, see `best_of`."""
    return best_of(final_evals(run), model)


def best_of(evals: Sequence[Record], model: str | None = None) -> Record | None:
    """Returns the evaluation of the best round.

    The validation split chooses it if there is one, otherwise the test set.
    """
    scores = [
        (record.get("val_accuracy", reached), record)
        for record in evals
        if (reached := accuracy(record, model)) is not None
    ]
    return max(scores, key=lambda pair: pair[0], default=(0.0, None))[1]


def chosen_by(run: Run) -> str:
    """Returns 'validation' if that split chooses the best round, else 'test'."""
    chosen = any("val_accuracy" in record for record in final_evals(run))
    return "validation" if chosen else "test"


def seed_of(run: Run) -> int | str:
    """Returns a run's seed, or the name of its folder if that is unknown."""
    return run.config.get("seed", run.path.resolve().name)
