"""A summary of a campaign: what was injected, where, and what came of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

HEAD = ("fault", "transport", "trials", "right error", "right rank", "agreed", "left behind")
TIMES = ("median, s", "99 %", "longest")


class Result(NamedTuple):
    """Of one trial."""

    kind: str
    transport: str
    wrong: frozenset[str]
    seconds: float | None


def table(results: Iterable[Result]) -> str:
    """In Markdown, a line for each kind and transport, and one for all."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    every = list(results)
    for result in every:
        groups[result.kind, result.transport].append(result)
    lines = [[*HEAD, *TIMES], ["---"] * 2 + ["--:"] * (len(HEAD) + len(TIMES) - 2)]
    lines += [_line(kind, transport, found) for (kind, transport), found in groups.items()]
    lines.append(_line("all", "", every))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(kind: str, transport: str, found: list[Result]) -> list[str]:
    def without(*categories: str) -> str:
        return str(sum(not result.wrong & set(categories) for result in found))

    left = sum("left" in result.wrong for result in found)
    seconds = sorted(result.seconds for result in found if result.seconds is not None)
    times = ["", "", ""]
    if seconds:
        most = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
        times = [f"{each:.3f}" for each in (statistics.median(seconds), most, seconds[-1])]
    return [
        kind, transport, str(len(found)), without("error"), without("error", "rank"), without("agreement", "values"),
        str(left), *times,
    ]  # fmt: skip
