"""A whole run: starts the ranks, and on each rank does steps, with reports, evaluations and checkpoints in between."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # optimizers import it, which takes seconds; here it is imported once, before ranks are forked

import ringreduce
from ringreduce import cores
from ringreduce.start.launchers import is_newcomer, launched
from ringreduce.training import elastic
from ringreduce.training.elastic.runs import Run
from ringreduce.training.trainer import checkpoint
from ringreduce.training.trainer.config import Config, ConfigError, writing
from ringreduce.training.trainer.parallel import optimizer_class
from ringreduce.training.trainer.trainer import KEPT, StepReport, Trainer
from ringreduce.training.trainer.training_log import Progress, Row, check_places, make_row, plot, summary

__all__ = ["on_ranks", "train"]

MOST_CORES = 8192  # the most that Linux supports


def train(comm: ringreduce.Communicator, config: Config) -> list[Row]:
    """Trains a model. Every rank must call it.

    Returns:
        The rows of the log on rank 0, an empty list on other ranks.

    Raises:
        ConfigError: A setting is wrong, or a checkpoint cannot be written.
        FloatingPointError: The loss is inf or NaN.
    """
    checkpoint.on_rank_0(comm, partial(check_places, config))
    resumes = config.resume and not config.elastic
    saved = checkpoint.on_rank_0(comm, partial(checkpoint.find, config)) if resumes else b""
    trainer = Trainer(config, comm)
    if saved:
        trainer.load_state_dict(checkpoint.load(saved))
    with Progress(config, comm.rank == 0 and not is_newcomer(), trainer.done) as progress:
        _steps(trainer, progress)
    trainer.close()
    if trainer.timeline is not None:
        with writing("trace", config.trace):
            trainer.timeline.save(config.trace)
    if trainer.comm.rank == 0:
        print(summary(progress.rows, trainer.comm.size))
        if config.plot and progress.rows:
            title = f"{config.task}, batch {config.batch}, {trainer.comm.size} ranks"
            with writing("plot", config.plot):
                print(f"Plot: {plot(progress.rows, Path(config.plot), title)}")
    return progress.rows


def _steps(trainer: Trainer, progress: Progress) -> None:
    config, reported = trainer.config, trainer.done
    fresh: list[StepReport] = []
    folder = Path(config.checkpoints)
    run = Run.begin(folder, checkpoint.SUFFIX)  # rank 0's
    for step in elastic_steps(trainer) if config.elastic else plain_steps(trainer):
        with step:
            if (
                step.comm is not trainer.comm or step.number != trainer.done
            ):  # other ranks, or the same step again
                trainer.regroup(step.comm, step.number)
                fresh, reported = [], step.number
                progress.show(trainer.comm.rank == 0, trainer.done)
            begun = trainer.done
            fresh += [trainer.step() for _ in range(_length(trainer))]
            done, due = trainer.done, partial(_is_due, trainer, begun)
            step.agree(done - begun)
            if reported < done and due(config.log_every):
                told, fresh, reported = fresh, [], done
                progress.report(make_row(trainer, told))
            if due(config.evaluate_every or config.steps):
                progress.report({"step": done, **trainer.evaluate()})
            if config.checkpoints and not config.elastic and due(config.checkpoint_every):
                write = partial(checkpoint.save, folder, run, done, trainer.state_dict(), config.keep)
                checkpoint.on_rank_0(trainer.comm, write)


def _length(trainer: Trainer) -> int:
    """Returns how many steps the ranks agree on at once: a round of low communication if ranks may be lost, or one."""
    outer, left = trainer.outer, trainer.config.steps - trainer.done
    return 1 if outer is None or not trainer.config.elastic else min(outer.left, left)


def _is_due(trainer: Trainer, begun: int, every: int) -> bool:
    """Returns whether the steps since ``begun`` have reached a multiple of ``every``, or the end."""
    return trainer.done == trainer.config.steps or trainer.done // every > begun // every


class PlainStep(contextlib.nullcontext[None]):
    """A step of ranks that stay the same."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.comm, self.number = trainer.comm, trainer.done

    def agree(self, steps: int) -> None:
        """Does nothing: no rank may be lost."""


def plain_steps(trainer: Trainer) -> Iterator[PlainStep]:
    """Yields a step until all are done."""
    while trainer.done < trainer.config.steps:
        yield PlainStep(trainer)


def elastic_steps(trainer: Trainer) -> Iterator[elastic.Step]:
    """Yields steps until all are done, on the ranks that are left. See :mod:`ringreduce.elastic`."""
    config, found = trainer.config, None
    if config.checkpoints:
        found = elastic.Checkpoints(
            config.checkpoints,
            every=config.checkpoint_every,
            keep=config.keep,
            resume=config.resume == "auto",
        )
    settings = tuple(str(getattr(config, name)) for name in KEPT)
    objects = {"model": trainer.model, "schedule": trainer.schedule}
    if trainer.balance is not None:
        objects["balance"] = trainer.balance
    # Optimizers of local steps are each rank's own.
    objects |= {"outer": trainer.outer} if trainer.outer else {"optimizer": trainer.optimizer}
    state = elastic.State(trainer.comm, **objects)
    yield from elastic.steps(
        state,
        config.steps,
        minimum=config.elastic,
        timeout=config.timeout,
        checkpoints=found,
        settings=settings,
    )


def _sharing(comm: ringreduce.Communicator, numbers: list[int]) -> int:
    """Returns how many ranks of this host may run on these cores. Some launchers give each rank its own cores."""
    mine = np.zeros(MOST_CORES, "uint8")
    mine[numbers] = 1
    here = comm.all_gather(mine).reshape(comm.size, -1)[comm.hosts[comm.host]]
    return int((here & mine).any(axis=1).sum())


def _siblings() -> int:
    """Returns how many ranks of this host the launcher says that there are, to a newcomer, which cannot ask them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) if is_newcomer() else 0


def on_ranks(function: Callable[..., Any], config: Config, *args: Any) -> Any:
    """Calls ``function(comm, config, *args)`` on each rank.

    The ranks are those of the launcher. Without a launcher, they are forked, each with its own cores.

    Returns:
        The result of rank 0, or of this rank if a launcher started it.
    """
    known = launched(os.environ)

    def on_rank(comm: ringreduce.Communicator) -> Any:
        host = cores.usable()
        ranks = _siblings() or _sharing(comm, [one.number for one in host.cores])
        shares = host.shares(ranks)
        if known is None and shares:  # ranks that migrate between cores disturb each other
            os.sched_setaffinity(0, shares[comm.rank])
        torch.set_num_threads(config.fixed_threads or host.threads(ranks))
        return function(comm, config, *args)

    optimizer_class(config)  # imported here once, before ranks are forked
    how: dict[str, Any] = {"timeout": config.timeout, "reproducible": config.reproducible or None}
    if known is None:
        return ringreduce.run(on_rank, config.ranks, **how)[0]
    if config.ranks not in (1, known.size):
        raise ConfigError(f"ranks: {known.launcher} has started {known.size}, not {config.ranks}")
    with (elastic.start if config.elastic else ringreduce.init)(**how) as comm:
        return on_rank(comm)
