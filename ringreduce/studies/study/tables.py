"""The results of a study as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ringreduce.studies.study.folder import CELL, Study
from ringreduce.studies.study.inference import CONFIDENCE, changes, winners
from ringreduce.studies.study.plan import Plan
from ringreduce.text import human_bytes, human_us, layout

__all__ = ["changed", "won"]

NAMED = 3  # the most algorithms of a tie that are named
HEADINGS = ("collective", "transport", "dtype", "wire")


def _title(keys: Sequence[str]) -> str:
    collective, transport, dtype, wire = keys
    return f"{collective}, {transport}, {dtype}" + (f", {wire} messages" if wire else "")


def _per_cent(part: float) -> str:
    return f"{100 * part:g} %"


def won(study: Study, plan: Plan) -> str:
    """Returns a table for each collective, with the winners by size and world."""
    lines: list[str] = []
    if len(study.rows):
        table = winners(study.rows, plan.difference)
        for keys, group in table.groupby(list(HEADINGS), sort=False):
            worlds = sorted(group.world.unique())
            rows = [["", *(f"{world} ranks" for world in worlds)]]
            for nbytes, line in group.groupby("nbytes"):
                by_world = {cell.world: _winner(cell) for cell in line.itertuples()}
                rows.append([human_bytes(int(nbytes)), *(by_world.get(world, "-") for world in worlds)])
            lines += [_title(keys), *layout(rows), ""]
        counts = study.rows.groupby(list(CELL)).launch.nunique()
        lines += [
            "x: the time of the best of the others, divided by the time of the fastest. "
            f"=: no difference above {_per_cent(plan.difference)} is shown.",
            "(1): the number that are slower than the fastest, but not shown to be slower than all that tie with it.",
            f"p < {1 - CONFIDENCE:.2g} after Holm's correction over all cells; "
            f"{counts.min()} to {counts.max()} launches.",
        ]
    lines += _refused(study)
    lines.append(f"Rows: {study.folder / 'rows.csv'}   Report: ringreduce study report {study.folder}")
    return "\n".join(lines)


def _winner(cell: Any) -> str:
    """Returns the algorithms that tie with the fastest and, in brackets, how many tie only with some of them."""
    names = [name for name in cell.winners if name not in cell.behind]
    more = f" = {len(names) - NAMED} more" if len(names) > NAMED else ""
    text = " = ".join(names[:NAMED]) + more + (f" ({len(cell.behind)})" if cell.behind else "")
    return f"{text}  {cell.ratio:.2f}x" if cell.ratio == cell.ratio else text


def _refused(study: Study) -> Iterator[str]:
    """Yields a line for each reason why something could not be measured."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in study.refused:
        reasons.setdefault((one["algorithm"], one["reason"]), []).append(
            f"{human_bytes(one['nbytes'])} on {one['world']} ranks"
        )
    for (name, reason), cells in reasons.items():
        where = cells[0] if len(cells) == 1 else f"{len(cells)} cells, first {cells[0]}"
        yield f"Not measured: {name} ({where}): {reason}"


def changed(before: Study, after: Study, everything: bool = False) -> str:
    """Returns the differences between two studies as text."""
    difference = float(after.plan.get("difference", 0.02))
    table = changes(before.rows, after.rows, difference)
    lines = [f"A: {_about(before)}", f"B: {_about(after)}"]
    for key in sorted(set(before.facts) | set(after.facts)):
        old, new = before.facts.get(key), after.facts.get(key)
        if old != new and key not in ("date", "command"):
            lines.append(f"   {key}: {old} -> {new}")
    shown = table if everything else table[table.change != ""]
    count = int((table.change != "").sum())
    lines.append(
        f"{count} of {len(table)} changed by more than {_per_cent(difference)} "
        f"(p < {1 - CONFIDENCE:.2g} after Holm's correction)"
    )
    if len(shown):
        lines += [
            "",
            *layout(
                [["cell", "algorithm", "A, us", "B, us", "B/A", "95 % interval", "p", ""], *_lines(shown)]
            ),
        ]
    rest = table[(table.change == "") & table.ratio.notna()]
    if len(rest):
        lines += ["", f"The other {len(rest)}: the median of B/A is {rest.ratio.median():.3f}"]
    lines += _unlike(table)
    lines += _alone("A", before.rows, after.rows) + _alone("B", after.rows, before.rows)
    return "\n".join(lines)


def _about(study: Study) -> str:
    cpu, date = (study.facts.get(key, "?") for key in ("cpu", "date"))
    return (
        f"{study.folder} (ringreduce {study.version}, {cpu}, {date}, {study.rows.launch.nunique()} launches)"
    )


def _lines(table: pd.DataFrame) -> Iterator[list[str]]:
    for line in table.itertuples():
        interval = "-" if line.low != line.low else f"{line.low:.3f} to {line.high:.3f}"
        p = "-" if line.p != line.p else f"{line.p:.2g}"
        ratio = "-" if line.ratio != line.ratio else f"{line.ratio:.3f}"
        times = human_us(line.before_us), human_us(line.after_us)
        yield [_cell(line), line.algorithm, *times, ratio, interval, p, line.change]


def _cell(line: Any) -> str:
    wire = f" {line.wire}" if line.wire else ""
    return (
        f"{line.collective} {line.transport} {line.dtype}{wire}, {human_bytes(line.nbytes)} on {line.world}"
    )


def _unlike(table: pd.DataFrame) -> list[str]:
    unlike = int(table.ratio.isna().sum())
    if not unlike:
        return []
    return [f"{unlike} cannot be compared: A and B were not measured in the same mode of the machine"]


def _alone(name: str, rows: pd.DataFrame, others: pd.DataFrame) -> list[str]:
    """Returns the cells and algorithms that only one study has."""
    names = [*CELL, "algorithm"]
    known = set(others[names].itertuples(index=False, name=None))
    own = rows[names].drop_duplicates().itertuples(index=False)
    only = [f"{_cell(line)}: {line.algorithm}" for line in own if tuple(line) not in known]
    if not only:
        return []
    return [
        f"Only in {name}: {len(only)}, first {only[0]}"
        if len(only) > 5
        else f"Only in {name}: {'; '.join(only)}"
    ]
