"""Results as text: a table in the manner of nccl-tests, OSU's, CSV, JSON, a comparison's overview."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from ringreduce.bench.results import Results, Row


def human_bytes(nbytes: int) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}iB"
    return f"{nbytes} B"


def human_us(us: float | None) -> str:
    """Three digits or so: microseconds."""
    if us is None:
        return "-"
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def heading(results: Results) -> list[str]:
    facts = results.facts
    place = "in place" if facts["in_place"] else "out of place"
    kind = f"{facts['dtype']} {facts['op']}, {place}, {facts['memory']} memory"
    if facts["async"]:
        kind += ", through the progress thread"
    probes = [facts["exchange_before_ns"], facts["exchange_after_ns"]]
    before, after = ("?" if ns is None else f"{ns:.0f} ns" for ns in probes)
    return [
        f"ringreduce {facts['ringreduce']}: {facts['ranks']} ranks on {facts['cores']} cores, {kind}",
        f"exchange between two cores, one way: {before} before, {after} after ({facts['mode']})",
    ]


def layout(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [gap.join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]


TITLES = (
    ("size", "(B)"), ("count", "(elements)"), ("type", ""), ("op", ""), ("algorithm", ""), ("time", "(us)"),
    ("spread", "(%)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("wrong", ""), ("floor", "(%)"),
)  # fmt: skip


def spread(row: Row) -> float:
    """How far the quartiles lie apart, in per cent of the median."""
    return float(100 * (row["p75_us"] - row["p25_us"]) / max(row["median_us"], 1e-4))


def _cells(row: Row) -> list[str]:
    first = [str(row["bytes"]), str(row["count"]), row["dtype"], row["op"], row["library"]]
    if "problem" in row:
        return [*first, *["-"] * 6]
    wrong = "N/A" if row["wrong"] is None else str(row["wrong"])
    percent = "-" if row["floor_percent"] is None else f"{row['floor_percent']:.0f}"
    bandwidths = [f"{row[key]:.2f}" for key in ("algbw_gbs", "busbw_gbs")]
    return [*first, human_us(row["median_us"]), f"{spread(row):.0f}", *bandwidths, wrong, percent]


def _peer_time(row: Row) -> str:
    return f"{row['wrong']} wrong" if row.get("wrong") else human_us(row.get("median_us"))


def table(results: Results) -> str:
    """A line per size and algorithm. `floor` is the floor's time in per cent of this one's."""
    lines = [f"# {line}" for line in heading(results)]
    for collective in results.collectives():
        peers = results.names("peer", collective)
        rows = [
            ["#", *(a for a, _ in TITLES), *peers],
            ["#", *(b for _, b in TITLES), *["(us)"] * len(peers)],
        ]
        for nbytes in results.sizes(collective):
            others = [results.row(collective, nbytes, peer) or {} for peer in peers]
            times = [_peer_time(other) for other in others]
            for name in results.names("ours", collective):
                row = results.row(collective, nbytes, name)
                if row is not None:
                    rows.append(["", *_cells(row), *times])
        lines += ["#", f"# {collective}", *layout(rows)]
    return "\n".join([*lines, "#", *(f"# {line}" for line in summary(results))])


def summary(results: Results) -> list[str]:
    ours = [row for row in results.rows if row["kind"] == "ours" and "problem" not in row]
    lines = list(results.notes)
    if ours and ours[0]["wrong"] is not None:
        wrong = results.wrong()
        lines.append(f"Wrong elements: {wrong} {'FAILED' if wrong else 'OK'}")
    if ours:
        mean = sum(row["busbw_gbs"] for row in ours) / len(ours)
        lines.append(f"Average bus bandwidth: {mean:.2f} GB/s")
    return lines


def osu(results: Results) -> str:
    """As OSU's micro-benchmarks print it, a block per collective and contestant."""
    blocks = []
    for collective in results.collectives():
        title = "".join(word.capitalize() for word in collective.split("_"))
        ours = results.names("ours", collective)
        for name in [*ours, *results.names("peer", collective)]:
            who = f"# ringreduce {title}" if name in ours else f"# {name} {title}"
            lines = [f"{who} Latency Test, {results.facts['ranks']} ranks"]
            lines[0] += f", algorithm {name}" if name in ours else ""
            lines += [f"# Datatype: {results.facts['dtype']}. The slowest rank's median time."]
            lines += [f"{'# Size':<14}{'Avg Latency(us)':>20}"]
            for nbytes in results.sizes(collective):
                row = results.row(collective, nbytes, name)
                if row is not None and "problem" not in row:
                    lines.append(f"{nbytes:<14}{row['median_us']:>20.2f}")
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def as_dict(results: Results) -> dict[str, Any]:
    return {"facts": results.facts, "notes": results.notes, "rows": results.rows}


def as_json(results: Results) -> str:
    return json.dumps(as_dict(results), indent=1)


COLUMNS = (
    "collective", "kind", "library", "bytes", "count", "dtype", "op", "in_place", "median_us", "p25_us",
    "p75_us", "algbw_gbs", "busbw_gbs", "wrong", "floor_us", "floor_percent", "iterations", "batch",
    "launches", "problem",
)  # fmt: skip


def as_csv(results: Results) -> str:
    """A line per figure, with the machine's facts repeated on each."""
    facts = {
        key: value
        for key, value in results.facts.items()
        if key not in ("dtype", "op", "in_place", "environment")
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *facts], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        writer.writerow({**row, **facts})
    return text.getvalue().rstrip("\n")


FORMATS = {"table": table, "osu": osu, "json": as_json, "csv": as_csv}


def overview(results: Results, collective: str) -> str:
    """Times in microseconds: a line per contestant, a column per size; * marks the fastest of ours."""
    sizes = results.sizes(collective)
    names = [name for kind in ("ours", "peer", "floor") for name in results.names(kind, collective)]
    rows = [[f"{collective}, us", *(human_bytes(nbytes) for nbytes in sizes)]]
    best = {nbytes: _fastest(results, collective, nbytes) for nbytes in sizes}
    for name in names:
        found = [results.row(collective, nbytes, name) or {} for nbytes in sizes]
        marks = ["*" if best[nbytes] == name else " " for nbytes in sizes]
        times = [human_us(row.get("median_us")) for row in found]
        rows.append([name, *(time + mark for time, mark in zip(times, marks, strict=True))])
    rows[0][1:] = [title + " " for title in rows[0][1:]]
    return "\n".join([*heading(results), "", *layout(rows), "", *results.notes])


def _fastest(results: Results, collective: str, nbytes: int) -> str:
    rows = [results.row(collective, nbytes, name) or {} for name in results.names("ours", collective)]
    timed = [(row["median_us"], row["library"]) for row in rows if row.get("median_us") is not None]
    return min(timed)[1] if timed else ""
