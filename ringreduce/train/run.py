"""A whole run on one rank: steps, and between them reports, evaluations and checkpoints."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import ringreduce
from ringreduce.train import checkpoint
from ringreduce.train.config import Config
from ringreduce.train.plot import plot
from ringreduce.train.progress import Progress, Row
from ringreduce.train.trainer import Step, Trainer

__all__ = ["summary", "train"]


def train(comm: ringreduce.Communicator, config: Config) -> list[Row]:
    """Trains as the settings say; every rank calls it.

    Returns:
        On rank 0 the rows of the log, on other ranks none.

    Raises:
        ConfigError: a setting is wrong.
        FloatingPointError: the loss is no number any more.
    """
    timeline = ringreduce.Timeline(comm) if config.trace else None
    trainer = Trainer(config, comm, timeline)
    _resume(trainer)
    with Progress(config, comm.rank == 0, trainer.done) as progress:
        _steps(trainer, progress)
    if timeline is not None:
        timeline.save(config.trace)
    if comm.rank == 0:
        print(summary(progress.rows, comm.size))
        if config.plot and progress.rows:
            title = f"{config.task}, batch {config.batch}, {comm.size} ranks"
            print(f"Plot: {plot(progress.rows, Path(config.plot), title)}")
    return progress.rows


def _steps(trainer: Trainer, progress: Progress) -> None:
    config, fresh = trainer.config, []
    while trainer.done < config.steps:
        fresh.append(trainer.step())
        done, last = trainer.done, trainer.done == config.steps
        if done % config.log_every == 0 or last:
            progress.report(report(trainer, fresh))
            fresh = []
        if last or (config.evaluate_every and done % config.evaluate_every == 0):
            found = trainer.evaluate()
            progress.report({"step": done, **found})
            progress.say(f"step {done}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
        if config.checkpoints and (last or done % config.checkpoint_every == 0):
            _save(trainer)


def report(trainer: Trainer, steps: list[Step]) -> Row:
    """A row about the last steps of all ranks: one call for several steps, so that no step waits for its loss."""
    comm, config = trainer.comm, trainer.config
    times = np.array([[step.seconds, step.communication, step.exposed] for step in steps])
    times = comm.all_gather(times[None])  # [ranks, steps, 3]
    losses = np.array([step.losses for step in steps])  # [steps, micro-batches]
    # As [micro-batches of all ranks, steps]: with logical shards these are the same numbers in the same order on any
    # number of ranks, and so is what they add up to.
    losses = comm.all_gather(np.ascontiguousarray(losses.T)).mean(axis=0)
    seconds, communication, exposed = times.mean(axis=(0, 1)).tolist()
    # The rank that came last waited for nothing but the communication; what others waited longer is its lateness.
    late = exposed - float(times[:, :, 2].min(axis=0).mean())
    if not all(map(math.isfinite, losses)):
        step = trainer.done - len(losses) + int(np.argmin(np.isfinite(losses))) + 1
        raise FloatingPointError(
            f"the loss of step {step} is no finite number: a lower learning_rate may help"
        )
    row = {
        "step": trainer.done,
        "loss": float(losses.mean()),
        "learning_rate": float(trainer.schedule.get_last_lr()[0]),
        "gradient_norm": statistics.fmean(step.norm for step in steps),
        "step_s": seconds,
        "compute_s": seconds - exposed,
        "communication_s": communication,
        "exposed_s": exposed,
        "waiting_for_ranks_s": late,
        "hidden_s": max(communication - exposed, 0.0),
        "samples_per_s": config.batch / seconds,
    }
    if config.task == "gpt":
        row["tokens_per_s"] = config.batch * config.context / seconds
    return row


def _save(trainer: Trainer) -> None:
    config, state = trainer.config, trainer.state_dict()
    if trainer.comm.rank == 0:
        checkpoint.save(Path(config.checkpoints), trainer.done, state, config.keep)


def _resume(trainer: Trainer) -> None:
    config = trainer.config
    if not config.resume:
        return
    path = checkpoint.newest(Path(config.checkpoints)) if config.resume == "auto" else Path(config.resume)
    content = checkpoint.broadcast_file(trainer.comm, path)
    if content is not None:
        trainer.load_state_dict(checkpoint.load(content))


def summary(rows: list[Row], ranks: int) -> str:
    """A table of medians over the log's rows but the first, in which buckets are still being found."""
    training = [row for row in rows if "loss" in row]
    if not training:
        return "no step was left to be done"
    steady = training[1:] or training

    def median(name: str) -> float:
        return float(statistics.median(row[name] for row in steady))

    rate = "tokens_per_s" if "tokens_per_s" in training[0] else "samples_per_s"
    communication = median("communication_s")
    share = f" ({100 * median('exposed_s') / communication:.0f} % exposed)" if communication else ""
    lines: list[tuple[str, Any]] = [
        ("ranks", ranks),
        ("steps", training[-1]["step"]),
        ("loss", f"{training[-1]['loss']:.4f}"),
        *((name.replace("_", " "), f"{value:.4f}") for name, value in _last_evaluation(rows)),
        (rate.replace("_per_", "/"), f"{median(rate):.0f}"),
        ("step", f"{1e3 * median('step_s'):.1f} ms"),
        ("  compute", f"{1e3 * median('compute_s'):.1f} ms"),
        ("  exposed communication", f"{1e3 * median('exposed_s'):.2f} ms"),
        ("    of it for late ranks", f"{1e3 * median('waiting_for_ranks_s'):.2f} ms"),
        ("communication", f"{1e3 * communication:.2f} ms{share}"),
    ]
    return "\n".join(f"{name:28}{value}" for name, value in lines)


def _last_evaluation(rows: list[Row]) -> list[tuple[str, float]]:
    for row in reversed(rows):
        if "validation_loss" in row:
            return [(name, value) for name, value in row.items() if name != "step"]
    return []
