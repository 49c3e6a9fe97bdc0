"""The table beside Gloo, and the list of what passes with Gloo and not with ours."""

from __future__ import annotations

from typing import NamedTuple

from .expected import Expected, find
from .outcome import FAILED, HUNG, PASSED, SKIPPED, Outcome

Outcomes = dict[int, dict[str, Outcome]]  # world -> test -> outcome
_KINDS = (PASSED, FAILED, HUNG, SKIPPED)


class Verdict(NamedTuple):
    """What differs from Gloo: (world, outcome) each."""

    worse: list[tuple[int, Outcome]]  # passes with Gloo, and not with ours
    expected: list[tuple[int, Outcome]]  # the same, but listed in expected.json
    stale: list[tuple[int, str]]  # listed there, and passes


def judge(ours: Outcomes, gloo: Outcomes, entries: list[Expected]) -> Verdict:
    """Compares test by test."""
    verdict = Verdict([], [], [])
    for world, outcomes in ours.items():
        for test, outcome in outcomes.items():
            listed = find(entries, test, world)
            if outcome.outcome == PASSED:
                verdict.stale.extend([(world, test)] if listed else [])
            elif test in gloo[world] and gloo[world][test].outcome == PASSED:
                (verdict.expected if listed else verdict.worse).append((world, outcome))
    return verdict


def table(ours: Outcomes, gloo: Outcomes, backend: str) -> str:
    """One row for each world: ours beside Gloo's."""
    heads = [f"{kind:>8}" for kind in _KINDS]
    lines = [f"{'':8}{backend:>{8 * len(_KINDS)}} | {'gloo':>{8 * len(_KINDS)}}"]
    lines.append(f"{'world':>8}{''.join(heads)} | {''.join(heads)}")
    for world in sorted(ours):
        counts = [_counts(outcomes[world]) for outcomes in (ours, gloo)]
        lines.append(f"{world:>8}{counts[0]} | {counts[1]}")
    return "\n".join(lines)


def _counts(outcomes: dict[str, Outcome]) -> str:
    kinds = [outcome.outcome for outcome in outcomes.values()]
    return "".join(f"{kinds.count(kind):>8}" for kind in _KINDS)


def lists(verdict: Verdict, entries: list[Expected]) -> str:
    """The tests by name, with their errors or reasons."""
    lines = []
    for world, outcome in verdict.expected:
        entry = find(entries, outcome.test, world)
        lines.append(f"expected  world {world}  {outcome.test}: {entry.reason if entry else ''}")
    for world, test in verdict.stale:
        lines.append(f"PASSES    world {world}  {test}: take it out of expected.json")
    for world, outcome in verdict.worse:
        lines.append(f"{outcome.outcome.upper():8}  world {world}  {outcome.test}: {outcome.first_error()}")
    return "\n".join(lines)
