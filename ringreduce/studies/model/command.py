"""The commands ``ringreduce fit``, ``explain`` and ``tune``."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ringreduce
from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.errors import RankFailed
from ringreduce.studies.bench.contest import under_launcher
from ringreduce.studies.model import Model, fit, tuning
from ringreduce.studies.simulate import Outcome
from ringreduce.text import byte_count, human_us, layout

__all__ = ["composition", "explain", "fit_model", "kept_model", "tune"]


def kept(suffix: str) -> Path:
    """Returns the file in which measurements on this kind of machine are kept for this user."""
    path = _engine.tuning_file()
    if not path:
        raise ValueError(
            "there is no default file, because neither RINGREDUCE_CACHE nor HOME is set; name a file"
        )
    return Path(path).with_suffix(suffix)


def kept_model(path: Path | None) -> Model | None:
    """Loads the model in a file. If ``path`` is None, loads the kept model, or returns None if there is none."""
    if path is not None:
        return Model.load(path)
    return Model.load(kept(".json")) if _engine.tuning_file() and kept(".json").exists() else None


def _written(path: Path) -> Path:
    """Checks, before anything is measured, that a file can be written. Returns its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if not path.stat().st_size:
        path.unlink()
    return path


def _on_ranks(ranks: int, function: object, *args: object) -> object:
    """Calls a function on the ranks of torchrun, mpirun or srun, or on new ranks. Returns the result of rank 0.

    On the other ranks of a launcher, it returns None.
    """
    if under_launcher():
        with ringreduce.init() as comm:
            result = function(comm, *args)  # type: ignore[operator]
            return result if comm.rank == 0 else None
    if ranks < 2:
        raise ValueError(f"--ranks must be at least 2, not {ranks}")
    try:
        return ringreduce.run(function, ranks, *args)[0]  # type: ignore[arg-type]
    except RankFailed as error:
        raise ValueError(str(error.__cause__ or error)) from error


def fit_model(options: Namespace) -> int:
    path = _written(options.model or kept(".json"))
    model = _on_ranks(options.ranks, fit, options.budget, None, options.training)
    if isinstance(model, Model):
        model.save(path)
        for place, costs in (("inside", model.inside), ("between", model.between)):
            if costs is not None:
                middle, high = (f"{100 * error:.0f} %" for error in costs.errors)
                print(
                    f"{place} hosts: the costs alone explain the measured times within {middle} (median) and {high} "
                    "(nine of ten)"
                )
        print(f"Model: {path}")
    return 0


def explain(nbytes: int, options: Namespace, model: Model) -> list[str]:
    """Returns a table of a model's predictions for each algorithm."""
    rows = [["algorithm", "predicted, us", "made of"]]
    for one in model.ranking(nbytes, options.ranks, options.collective):
        rows.append([one.algorithm, human_us(1e6 * one.seconds), composition(one)])
    return layout(rows)


def composition(outcome: Outcome) -> str:
    """Returns the causes that take most of the time, as text."""
    shares = {
        cause: seconds / outcome.seconds for cause, seconds in outcome.made_of.items() if outcome.seconds
    }
    largest = sorted(shares.items(), key=lambda item: -abs(item[1]))[:4]
    return ", ".join(
        f"{100 * share:.0f} % {cause.replace('_', ' ')}" for cause, share in largest if abs(share) > 0.02
    )


@contextmanager
def without_tables() -> Iterator[None]:
    """Disables tuning tables while the context is open, so that they do not influence measurements."""
    before = os.environ.get("RINGREDUCE_TUNING")
    os.environ["RINGREDUCE_TUNING"] = "off"
    try:
        yield
    finally:
        del os.environ["RINGREDUCE_TUNING"]
        if before is not None:
            os.environ["RINGREDUCE_TUNING"] = before


def _tuned(comm: Communicator, model: Model | None, options: Namespace) -> tuple[list[str], Model]:
    found = model or fit(comm)
    sizes = [byte_count(text) for text in options.bytes or ()] or tuning.SIZES

    def tell(line: str) -> None:
        print(line, flush=True)

    choices = tuning.tune(comm, found, options.collective, sizes, budget=options.budget, tell=tell)
    return tuning.table(choices, comm.transport), found


def tune(options: Namespace) -> int:
    path = _written(options.output or kept(".tuning"))
    known = {entry.collective for entry in ringreduce.algorithms()}
    for name in options.collective:
        if name not in known:
            raise ValueError(f"-c: there is no collective {name!r}")
    for text in options.bytes or ():
        byte_count(text)
    with without_tables():
        found = _on_ranks(options.ranks, _tuned, kept_model(options.model), options)
    if isinstance(found, tuple):
        rows, model = found
        tuning.write(path, rows, model)
        print(f"{len(rows)} rows: {path}")
    return 0
