"""Shows what cores and links did in a simulation, as a picture (Gantt chart) or as a trace for Perfetto."""

from __future__ import annotations

from pathlib import Path

from ringreduce import traces
from ringreduce.plotting import pyplot
from ringreduce.studies.simulate.simulation import Interval, Outcome

__all__ = ["picture", "trace"]

COLORS = {"send": "#1565c0", "receive": "#c2185b", "local": "#ef6c00", "transfer": "#00838f"}


def _lanes(outcome: Outcome) -> dict[str, list[Interval]]:
    """Returns the intervals of each rank, followed by those of each link."""
    lanes: dict[str, list[Interval]] = {}
    order = sorted(outcome.intervals, key=lambda one: (one.activity == "transfer", one.where, one.begin))
    for interval in order:
        is_link = interval.activity == "transfer"
        name = outcome.link_names[interval.where] if is_link else f"rank {interval.where}"
        lanes.setdefault(name, []).append(interval)
    return lanes


def picture(outcome: Outcome, path: Path) -> Path:
    """Writes a Gantt chart of ranks and links, and returns its path.

    Raises:
        PlotError: Matplotlib is not installed.
    """
    plt = pyplot()
    lanes = _lanes(outcome)
    figure, axes = plt.subplots(figsize=(12, 1.6 + 0.28 * len(lanes)), layout="constrained")
    for height, intervals in enumerate(lanes.values()):
        for activity, color in COLORS.items():
            bars = [
                (1e6 * one.begin, 1e6 * (one.end - one.begin))
                for one in intervals
                if one.activity == activity
            ]
            axes.broken_barh(bars, (height - 0.4, 0.8), facecolors=color, label=None if height else activity)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.invert_yaxis()
    axes.set_xlabel("time (µs)")
    axes.set_title(
        f"{outcome.collective} by {outcome.algorithm}, {outcome.nbytes} B, {outcome.world} ranks: "
        f"{1e6 * outcome.seconds:.1f} µs, {outcome.bottleneck}"
    )
    patches = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    figure.legend(patches, list(COLORS), loc="outside lower center", ncols=len(COLORS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def trace(outcome: Outcome, path: Path) -> Path:
    """Writes a file in Chrome's trace event format, for Perfetto, and returns its path.

    It has a process for the ranks and one for the links.
    """
    events: list[traces.Event] = []
    for number, (name, intervals) in enumerate(_lanes(outcome).items()):
        process = int(intervals[0].activity == "transfer")
        events += traces.label(name, process, number) + traces.label(("ranks", "links")[process], process)
        for one in intervals:
            details = {"round": one.round, "slice": one.slice} | ({"peer": one.peer} if one.peer >= 0 else {})
            events.append(traces.span(one.activity, one.begin, one.end, process, number, args=details))
    path.parent.mkdir(parents=True, exist_ok=True)
    traces.write(path, events)
    return path
