"""The output of a run, all on rank 0: log, progress bar, TensorBoard, plot, and a table at the end."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ringreduce.plotting import OURS, PlotError, pyplot, two_axes
from ringreduce.training.trainer.config import Config, ConfigError, writing
from ringreduce.training.trainer.trainer import StepReport, Trainer

__all__ = ["Progress", "Row", "check_places", "exposed_share", "make_row", "plot", "summary"]

Row = dict[str, Any]


def check_places(config: Config) -> None:
    """Creates the folders that the run writes to, so that the run does not fail at its end.

    Raises:
        ConfigError: A folder or file cannot be written, or a package that writes it is not installed.
    """
    for name in ("checkpoints", "tensorboard", "json_log", "plot", "trace"):
        if not getattr(config, name):
            continue
        place = Path(getattr(config, name))
        folder = place if name in ("checkpoints", "tensorboard") else place.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            if folder != place and place.exists():
                place.open("ab").close()
        except OSError as error:
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigError(f"{name}: cannot write to {place}: {reason}") from error
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tensorboard: the package is not installed; pip install tensorboard")
    if config.plot:
        try:
            kinds = pyplot().Figure().canvas.get_supported_filetypes()
        except PlotError as error:
            raise ConfigError(f"plot: {error}") from error
        if Path(config.plot).suffix[1:] not in kinds:
            endings = ", .".join(sorted(kinds))
            raise ConfigError(f"plot: the name of {config.plot} must end in one of .{endings}")


def exposed_share(communication: Any, exposed: Any) -> float:
    """Returns the share of the communication that was not hidden, 0 to 1. Both arguments are seconds [ranks, steps].

    A rank that is early also waits for the other ranks. The rank that waits least in a step is the last one, and waits
    only for the communication, so its times are used.
    """
    last = np.argmin(exposed, axis=0)[None]
    waited, sent = (float(np.take_along_axis(times, last, 0).sum()) for times in (exposed, communication))
    return min(waited / sent, 1.0) if sent > 0 else 0.0


def make_row(trainer: Trainer, steps: list[StepReport]) -> Row:
    """Returns a row of the log about the last steps of all ranks. Every rank must call it.

    It covers several steps at once, so that not every step has to wait for its loss.

    Raises:
        FloatingPointError: A loss is inf or NaN.
    """
    comm, config = trainer.comm, trainer.config
    own = np.array([[[step.seconds, step.communication, step.exposed] for step in steps]])
    times = np.moveaxis(comm.all_gather(own), 2, 0)  # [3, ranks, steps]
    losses = np.array([step.losses for step in steps])  # [steps, micro-batches]
    # [micro-batches of all ranks, steps]: with logical shards, the same numbers are in the same order on any number of
    # ranks, so that their sum is the same too.
    losses = comm.all_gather(np.ascontiguousarray(losses.T)).mean(axis=0)
    if not all(map(math.isfinite, losses)):
        step = trainer.done - len(losses) + int(np.argmin(np.isfinite(losses))) + 1
        raise FloatingPointError(f"the loss of step {step} is not finite; a lower learning_rate may help")
    seconds, communication, exposed = times.mean(axis=(1, 2)).tolist()
    row = {
        "step": trainer.done,
        "loss": float(losses.mean()),
        "learning_rate": float(trainer.schedule.get_last_lr()[0]),
        "gradient_norm": statistics.fmean(step.norm for step in steps),
        "step_s": seconds,
        "compute_s": seconds - exposed,
        "communication_s": communication,
        "exposed_s": exposed,
        # The last rank waited only for the communication. The others waited longer because it was late.
        "waiting_for_ranks_s": exposed - float(times[2].min(axis=0).mean()),
        "hidden_s": max(communication - exposed, 0.0),
        "exposed_share": exposed_share(times[1], times[2]),
        "samples_per_s": config.batch / seconds,
    }
    if config.task == "gpt":
        row["tokens_per_s"] = config.batch * config.context / seconds
    return row


class Progress(contextlib.ExitStack):
    """Shows the rows of the log. On ranks other than 0 it does nothing.

    Attributes:
        rows: The rows reported so far, on rank 0.
    """

    def __init__(self, config: Config, shown: bool, first_step: int = 0) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._config, self._shown = config, False
        self._board: Any = None
        self._bar: Any = None
        self._log: Path | None = None
        self._say: Callable[[str], None] = partial(print, flush=True)
        self.show(shown, first_step)

    def show(self, shown: bool, first_step: int) -> None:
        """Begins to show rows, if this rank has become rank 0."""
        config = self._config
        if not shown or self._shown:
            return
        self._shown = True
        if config.tensorboard:
            tensorboard = importlib.import_module("torch.utils.tensorboard")
            self._board = self.enter_context(tensorboard.SummaryWriter(config.tensorboard))
        if config.json_log:
            self._log = Path(config.json_log)
            self._log.open("a" if first_step else "w").close()
        with contextlib.suppress(ImportError):
            # None hides the bar if standard error is not a terminal, so that log files stay short.
            hidden = None if config.progress else True
            tqdm = importlib.import_module("tqdm").tqdm
            bar = tqdm(total=config.steps, initial=first_step, disable=hidden, unit="step")
            self._bar = self.enter_context(bar)
            self._say = self._bar.write

    def report(self, row: Row) -> None:
        """Writes a row to the log and TensorBoard. Training rows move the bar, and evaluation rows are printed."""
        if not self._shown:
            return
        self.rows.append(row)
        if self._log is not None:
            with writing("json_log", self._log), self._log.open("a") as file:
                print(json.dumps(row), file=file)
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, row["step"])
        if self._bar is not None and "loss" in row:
            rate, unit = _rate(row)
            hidden, exposed = 1e3 * row["hidden_s"], 1e3 * row["exposed_s"]
            times = f"communication {hidden:.1f} ms hidden + {exposed:.1f} ms exposed"
            text = f"loss {row['loss']:.3f}, {row[rate]:.0f} {unit}, {times}"
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(row["step"] - self._bar.n)
        if "validation_loss" in row:
            found = ", ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "step")
            self._say(f"step {row['step']}: {found}")  # tqdm prints it above the bar


def _rate(row: Row) -> tuple[str, str]:
    return ("tokens_per_s", "tokens/s") if "tokens_per_s" in row else ("samples_per_s", "samples/s")


def summary(rows: list[Row], ranks: int) -> str:
    """Returns a table of medians over the log's rows, without the first, in which buckets are still arranged."""
    training = [row for row in rows if "loss" in row]
    if not training:
        return "there were no steps left to do"
    steady = training[1:] or training
    middle = {name: float(statistics.median(row[name] for row in steady)) for name in steady[0]}
    rate, unit = _rate(middle)
    held_out = next((row for row in reversed(rows) if "validation_loss" in row), {})
    share = f" ({100 * middle['exposed_share']:.0f} % exposed)" if middle["communication_s"] > 0 else ""
    lines: list[tuple[str, Any]] = [
        ("ranks", ranks),
        ("steps", training[-1]["step"]),
        ("loss", f"{training[-1]['loss']:.4f}"),
        *((name.replace("_", " "), f"{value:.4f}") for name, value in held_out.items() if name != "step"),
        (unit, f"{middle[rate]:.0f}"),
        ("step", f"{1e3 * middle['step_s']:.1f} ms"),
        ("  compute", f"{1e3 * middle['compute_s']:.1f} ms"),
        ("  exposed communication", f"{1e3 * middle['exposed_s']:.2f} ms"),
        ("    waiting for late ranks", f"{1e3 * middle['waiting_for_ranks_s']:.2f} ms"),
        ("communication", f"{1e3 * middle['communication_s']:.2f} ms{share}"),
    ]
    return "\n".join(f"{name:28}{value}" for name, value in lines)


def plot(rows: list[Row], path: Path, title: str = "") -> Path:
    """Plots the loss and the time of a step, and returns the path of the picture.

    Args:
        rows: The rows of the log. Training rows have ``loss``, evaluation rows ``validation_loss``.
        path: The file to write.
        title: The title of the picture.

    Raises:
        PlotError: Matplotlib is not installed.
    """
    training = [row for row in rows if "loss" in row]
    held_out = [(row["step"], row["validation_loss"]) for row in rows if "validation_loss" in row]
    steps = [row["step"] for row in training]
    compute, exposed, late, hidden, whole = (
        np.array([1e3 * row[name] for row in training])
        for name in ("compute_s", "exposed_s", "waiting_for_ranks_s", "hidden_s", "step_s")
    )
    with two_axes(path, title, 11, 4.2) as (left, right):
        left.plot(steps, [row["loss"] for row in training], color="0.6", label="training")
        where: Any = np.array(held_out).reshape(-1, 2).T
        left.plot(*where, color=OURS, marker="o", markersize=4, label="held out")
        left.set(xlabel="step", ylabel="loss")
        labels = ["compute", "exposed communication", "exposed: waiting for a late rank"]
        colors = ["#b0bec5", OURS, "#f0a3c0"]
        right.stackplot(steps, compute, exposed - late, late, labels=labels, colors=colors)
        right.plot(steps, hidden, color="black", linestyle=":", label="hidden communication (during compute)")
        right.set(xlabel="step", ylabel="time of a step (ms)", ylim=(0, 1.4 * whole.max()))  # legend on top
        for axes in (left, right):
            axes.legend()
    return path
