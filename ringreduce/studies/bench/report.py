"""Results as text: tables in the formats of nccl-tests and OSU, CSV, JSON, and comparisons of contestants."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from ringreduce.studies.bench.problem import MESSAGES, STREAMS
from ringreduce.studies.bench.results import Results, Row, as_dict, bus_formula
from ringreduce.text import human_bytes, human_us, layout, markdown


def heading(results: Results) -> list[str]:
    facts = results.facts
    place = "in place" if facts["in_place"] else "out of place"
    kind = f"{facts['dtype']} {facts['op']}, {place}, {facts['memory']} memory"
    if facts["async"]:
        kind += ", through the progress thread"
    return [
        f"ringreduce {facts['ringreduce']}: {facts['ranks']} ranks on {facts['cores']} cores, {kind}",
        f"host {facts['host']}, {facts['cpu']}, governor {facts['governor']}; transport {facts['transport']}, "
        f"interface {facts['interface']}",
        f"exchange between two cores, one way: {exchanges(facts)}{others(facts)}",
    ]


def exchanges(facts: dict[str, Any]) -> str:
    probes = facts["exchange_before_ns"], facts["exchange_after_ns"]
    before, after = ("?" if ns is None else f"{ns:.0f} ns" for ns in probes)
    return f"{before} before, {after} after ({facts['mode']})"


def others(facts: dict[str, Any]) -> str:
    """Returns what other programs took of the cores: small calls then wait for slices of the scheduler."""
    busy = facts.get("busy_percent")
    return "" if busy is None else f"; other programs took {busy} % of the cores' time"


def bandwidths(collective: str) -> str:
    """Returns the definitions of algbw and busbw."""
    if collective == "barrier":
        return "a barrier has no bytes, and so no bandwidth"
    size = "size of a message" if collective in MESSAGES else "size"
    return f"algbw = {size} / time; busbw = {bus_formula(collective)}, n ranks"


TITLES = (
    ("size", "(B)"), ("count", "(elements)"), ("type", ""), ("op", ""), ("algorithm", ""), ("time", "(us)"),
    ("spread", "(%)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("wrong", ""), ("floor", "(%)"),
)  # fmt: skip


def spread(row: Row) -> float:
    """Returns the range of the launches (of a single one, the distance of its quartiles) in per cent of the median."""
    low, high = ("low_us", "high_us") if row["launches"] > 1 else ("p25_us", "p75_us")
    return float(100 * (row[high] - row[low]) / max(row["median_us"], 1e-4))


def time_text(row: Row | None) -> str:
    """Returns the median, or the reason why there is none. * marks a median that was measured in another mode."""
    if row is None:
        return "-"
    if row.get("wrong"):
        return f"{row['wrong']} wrong"
    return str(row["problem"]) if "problem" in row else human_us(row["median_us"]) + "*" * row["other_mode"]


def _cells(row: Row) -> list[str]:
    first = [str(row["bytes"]), str(row["count"]), row["dtype"], row["op"], row["library"]]
    if "problem" in row:
        return [*first, *["-"] * 6]
    wrong = "N/A" if row["wrong"] is None else str(row["wrong"])
    percent = "-" if row["floor_percent"] is None else f"{row['floor_percent']:.0f}"
    rates = ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("algbw_gbs", "busbw_gbs")]
    return [*first, human_us(row["median_us"]), f"{spread(row):.0f}", *rates, wrong, percent]


def table(results: Results) -> str:
    """Returns a table with a line per size and algorithm. `floor` is the time of the floor in per cent of its time."""
    lines = [f"# {line}" for line in heading(results)]
    for collective in results.collectives():
        peers = results.names("peer", collective)
        rows = [
            ["#", *(a for a, _ in TITLES), *peers],
            ["#", *(b for _, b in TITLES), *["(us)"] * len(peers)],
        ]
        for nbytes in results.sizes(collective):
            others = [results.row(collective, nbytes, peer) for peer in peers]
            times = ["-" if other and "problem" in other else time_text(other) for other in others]
            for name in results.names("ours", collective):
                row = results.row(collective, nbytes, name)
                if row is not None:
                    rows.append(["", *_cells(row), *times])
        lines += ["#", f"# {collective}: {bandwidths(collective)}", *layout(rows)]
    return "\n".join([*lines, "#", *(f"# {line}" for line in summary(results))])


def summary(results: Results) -> list[str]:
    ours = [row for row in results.rows if row["kind"] == "ours" and "problem" not in row]
    lines = list(results.notes)
    if ours and ours[0]["wrong"] is not None:
        wrong = results.wrong()
        lines.append(f"Wrong elements: {wrong} {'FAILED' if wrong else 'OK'}")
    rates = [row["busbw_gbs"] for row in ours if row["busbw_gbs"] is not None]
    if rates:
        lines.append(f"Average bus bandwidth: {sum(rates) / len(rates):.2f} GB/s")
    return lines


def osu(results: Results) -> str:
    """Returns a block per collective and contestant, in the format of OSU's micro-benchmarks with -f."""
    blocks = []
    for collective in results.collectives():
        title = "".join(word.capitalize() for word in collective.split("_"))
        ours = results.names("ours", collective)
        for name in [*ours, *results.names("peer", collective)]:
            rows = [results.row(collective, nbytes, name) for nbytes in results.sizes(collective)]
            figures = [row for row in rows if row is not None and "problem" not in row]
            if not figures:
                continue
            who = f"ringreduce {title}" if name in ours else f"{name} {title}"
            test = "Bandwidth" if collective in STREAMS else "Latency"
            lines = [f"# {who} {test} Test, {results.facts['ranks']} ranks"]
            lines[0] += f", algorithm {name}" if name in ours else ""
            lines += [f"# Datatype: {results.facts['dtype']}."]
            shown = _osu_rates if collective in STREAMS else _osu_latencies
            blocks.append("\n".join([*lines, *shown(figures, collective)]))
    return "\n\n".join(blocks)


def _osu_rates(figures: list[Row], collective: str) -> list[str]:
    """Returns the lines of osu_bw or, for all pairs together, of osu_mbw_mr."""
    if collective == "send":
        lines = [f"{'# Size':<10}{'Bandwidth (MB/s)':>18}"]
        return [*lines, *(f"{row['bytes']:<10}{row['bytes'] / row['max_us']:>18.2f}" for row in figures)]
    lines = [f"{'# Size':<10}{'MB/s':>18}{'Messages/s':>18}"]
    for row in figures:
        rate = row["ranks"] // 2 / row["max_us"]
        lines.append(f"{row['bytes']:<10}{row['bytes'] * rate:>18.2f}{1e6 * rate:>18.2f}")
    return lines


def _osu_latencies(figures: list[Row], collective: str) -> list[str]:
    """Returns the lines with average, minimum and maximum over the averages of the ranks."""
    with_size = collective != "barrier"
    first = f"{'# Size':<10}{'Avg Latency(us)':>18}" if with_size else "# Avg Latency(us)"
    lines = [f"{first}{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}"]
    for row in figures:
        size = f"{row['bytes']:<10}{row['avg_us']:>18.2f}" if with_size else f"{row['avg_us']:>17.2f}"
        lines.append(f"{size}{row['min_us']:>18.2f}{row['max_us']:>18.2f}{row['iterations']:>12}")
    return lines


def as_json(results: Results) -> str:
    return json.dumps(as_dict(results), indent=1)


COLUMNS = (
    "collective", "kind", "library", "bytes", "count", "dtype", "op", "in_place", "root", "median_us", "p25_us",
    "p75_us", "low_us", "high_us", "avg_us", "min_us", "max_us", "algbw_gbs", "busbw_gbs", "wrong", "floor_us",
    "floor_percent", "iterations", "batch", "launches", "problem",
)  # fmt: skip


def as_csv(results: Results) -> str:
    """Returns a line per figure. The facts of the machine are repeated on each line."""
    facts = {key: value for key, value in results.facts.items() if key not in (*COLUMNS, "environment")}
    facts["rank_cores"] = json.dumps(facts["rank_cores"])
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *facts], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        writer.writerow({**row, **facts})
    return text.getvalue().rstrip("\n")


FORMATS = {"table": table, "osu": osu, "json": as_json, "csv": as_csv}


def grid(
    results: Results, collective: str, title: str, names: Sequence[str],
    text: Callable[[Row | None], str] = time_text,
) -> list[list[str]]:  # fmt: skip
    """Returns a table with a line per contestant and a column per size."""
    sizes = results.sizes(collective)
    rows = [[name, *(text(results.row(collective, nbytes, name)) for nbytes in sizes)] for name in names]
    return [[title, *map(human_bytes, sizes)], *rows]


def overview(results: Results, collective: str) -> str:
    """Returns a table of times in microseconds. < marks the fastest algorithm of ringreduce for each size."""
    ours = results.names("ours", collective)
    best = {nbytes: results.fastest(collective, nbytes, ours) for nbytes in results.sizes(collective)}

    def marked(row: Row | None) -> str:
        if row is None or "problem" in row:
            return "-  "
        return time_text(row) + (" <" if best[row["bytes"]] == row["library"] else "  ")

    names = [name for kind in ("ours", "peer", "floor") for name in results.names(kind, collective)]
    rows = grid(results, collective, f"{collective}, us", names, marked)
    rows[0][1:] = [f"{title}  " for title in rows[0][1:]]
    return "\n".join([*heading(results), "", *layout(rows), "", *results.notes])


def with_spread(row: Row | None) -> str:
    if row is None or row.get("wrong") or "problem" in row:
        return time_text(row)
    return f"{time_text(row)} ±{spread(row) / 2:.0f}%"


def ratios(results: Results, collective: str, title: str, references: Sequence[str]) -> str:
    """Returns a table of each contestant's time divided by the time of the fastest reference."""

    def ratio(row: Row | None) -> str:
        if row is None or "problem" in row or row.get("wrong"):
            return "-"
        best = results.fastest(collective, row["bytes"], references)
        least = None if best is None else results.us(collective, row["bytes"], best)
        return f"{row['median_us'] / least:.2f}" if least else "-"

    present = results.names(collective=collective)
    rows = grid(results, collective, f"x {title}", [name for name in present if references != [name]], ratio)
    if len(references) > 1:
        fastest = [results.fastest(collective, n, references) or "-" for n in results.sizes(collective)]
        rows.append(["reference", *fastest])
    return markdown(rows)


def mode_text(facts: dict[str, Any]) -> str:
    text = f"Exchange between two cores, one way: {exchanges(facts)}{others(facts)}"
    return f"{text}. A time marked * was measured in another mode; do not compare it with the others."


def report(results: Results, collective: str, references: dict[str, list[str]]) -> str:
    """Returns times and ratios in Markdown.

    `references` maps a title to contestants. The fastest of them is the reference of the ratios.
    """
    absent = {row["library"] for row in results.rows if row.get("problem") == "not installed"}
    shown = Results(results.facts, [row for row in results.rows if row["library"] not in absent])
    parts = [markdown(grid(shown, collective, "us", shown.names(collective=collective), with_spread))]
    for title, names in references.items():
        present = [name for name in names if name in shown.names(collective=collective)]
        if present:
            parts.append(ratios(shown, collective, title, present))
    notes = [note for note in results.notes if not note.endswith(": not installed")]
    if absent:
        notes.append(f"Not installed or not built: {', '.join(sorted(absent))}.")
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])
