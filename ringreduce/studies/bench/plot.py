"""Plots latency and bus bandwidth against size for each algorithm, each peer and the floor. Needs Matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringreduce.plotting import OURS, two_axes
from ringreduce.studies.bench.results import Results, bus_factor, bus_formula
from ringreduce.text import human_bytes

SHARED_COLOR = "#ef6c00"
PEERS = {"gloo": "#6a1b9a", "openmpi": "#1565c0", "mpich": "#00838f", "impi": "#2e7d32"}
PALE = (
    "#90a4ae", "#a1887f", "#9fa8da", "#80cbc4", "#ce93d8", "#c5b358", "#a5d6a7", "#ef9a9a", "#b0bec5",
    "#8d9db6", "#d7a86e",
)  # fmt: skip


def style(name: str, kind: str, index: int) -> dict[str, Any]:
    """Returns the style of a line: bold for auto, pale for other algorithms, dashed for peers, dotted for the floor."""
    if kind == "floor":
        return {"color": "black", "linestyle": ":", "linewidth": 1.8, "zorder": 2}
    if kind == "peer":
        color = PEERS.get(name, "#5d4037")
        return {
            "color": color,
            "linestyle": "--",
            "linewidth": 1.8,
            "marker": "s",
            "markersize": 3.5,
            "zorder": 4,
        }
    if name.startswith("auto"):
        color = OURS if name == "auto" else SHARED_COLOR
        return {"color": color, "linewidth": 3.2, "marker": "o", "markersize": 5.5, "zorder": 6}
    color, marker = PALE[index % len(PALE)], "ovP^X<D>ps*"[index % 11]
    return {"color": color, "linewidth": 1.1, "marker": marker, "markersize": 3.4, "zorder": 3}


def label(name: str, kind: str) -> str:
    if kind == "floor":
        return "floor: scale own buffer once"
    known = {"gloo": "Gloo", "openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI"}
    if kind == "peer":
        return known.get(name, name)
    return {"auto": "ringreduce auto", "auto+shared": "ringreduce auto, ringreduce.empty"}.get(name, name)


def series(results: Results, collective: str, name: str) -> tuple[list[int], list[float], list[float]]:
    """Returns the sizes in bytes, times in microseconds and bus bandwidths in GB/s of a contestant."""
    factor = bus_factor(collective, results.facts["ranks"])
    rows = [results.row(collective, nbytes, name) for nbytes in results.sizes(collective)]
    timed = [row for row in rows if row is not None and row.get("median_us")]
    times = [float(row["median_us"]) for row in timed]
    sizes = [int(row["bytes"]) for row in timed]
    return sizes, times, [factor * n / us / 1e3 for n, us in zip(sizes, times, strict=True)]


def _axes(left: Any, right: Any, sizes: list[int], collective: str) -> None:
    rate = bus_formula(collective).replace("algbw", "size / time")
    for axes, name in ((left, "time (µs)"), (right, f"bus bandwidth (GB/s): {rate}")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylabel(name)
        axes.set_xlabel("size of the buffer")
        step = max(1, -(-len(sizes) // 7))
        axes.set_xticks(sizes[::step], [human_bytes(nbytes) for nbytes in sizes[::step]])
        axes.minorticks_off()


def plot(results: Results, path: Path, collective: str | None = None) -> Path:
    """Writes the plot of a collective, by default the first that has sizes, and returns its path."""
    collective = collective or next(each for each in results.collectives() if each != "barrier")
    facts = results.facts
    kind = f"{facts['dtype']} {facts['op']}" if "reduce" in collective else facts["dtype"]
    title = f"{collective}, {kind}, {facts['ranks']} ranks on {facts['cores']} cores ({facts['mode']} mode)"
    with two_axes(path, title, 12.5, 4.9) as (left, right):
        for kind in ("ours", "peer", "floor"):
            for index, name in enumerate(results.names(kind, collective)):
                sizes, times, bandwidths = series(results, collective, name)
                look = style(name, kind, index)
                left.plot(sizes, times, label=label(name, kind), **look)
                right.plot(sizes, bandwidths, **look)
        _axes(left, right, results.sizes(collective), collective)
        left.figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=9)
    return path
