"""Two pictures of a run: its loss, and where the time of its steps went. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringreduce.plotting import OURS, pyplot
from ringreduce.train.progress import Row

__all__ = ["plot"]


def plot(rows: list[Row], path: Path, title: str = "") -> Path:
    """Writes the picture and returns its path.

    Args:
        rows: of the log: those with ``loss`` are training's, those with ``validation_loss`` the evaluations'.

    Raises:
        PlotError: matplotlib is not installed.
    """
    plt = pyplot()
    training = [row for row in rows if "loss" in row]
    held_out = [row for row in rows if "validation_loss" in row]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _losses(left, training, held_out)
    _times(right, training)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.suptitle(title, fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def _losses(axes: Any, training: list[Row], held_out: list[Row]) -> None:
    axes.plot(_steps(training), [row["loss"] for row in training], color="0.6", label="training")
    losses = [row["validation_loss"] for row in held_out]
    axes.plot(_steps(held_out), losses, color=OURS, marker="o", markersize=4, label="held out")
    axes.set_ylabel("loss")


def _times(axes: Any, training: list[Row]) -> None:
    steps = _steps(training)
    names = ("compute_s", "exposed_s", "waiting_for_ranks_s")
    compute, exposed, late = ([1e3 * row[name] for row in training] for name in names)
    own = [all_of_it - part for all_of_it, part in zip(exposed, late, strict=True)]
    labels = ["compute", "exposed communication", "exposed: waiting for a late rank"]
    axes.stackplot(steps, compute, own, late, labels=labels, colors=["#b0bec5", OURS, "#f0a3c0"])
    hidden = [1e3 * row["hidden_s"] for row in training]
    axes.plot(steps, hidden, color="black", linestyle=":", label="hidden communication (beside compute)")
    axes.set_ylabel("time of a step (ms)")
    axes.set_ylim(0, 1.4 * max(row["step_s"] for row in training) * 1e3)  # the legend is at the top


def _steps(rows: list[Row]) -> list[int]:
    return [row["step"] for row in rows]
