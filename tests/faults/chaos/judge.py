"""Whether what became of a trial is what the library promises: a pure function."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.faults.chaos.plan import ENDS, HANGS, HARMLESS, STAYS, Trial
from tests.faults.chaos.run import Outcome, Story

# What can be wrong: another error than promised (or none, or no end at all), another rank blamed, survivors that differ
# about who survives, a communicator after it that does not work, wrong values, what is left behind.
CATEGORIES = ("error", "rank", "agreement", "values", "left", "slow")


@dataclass
class Verdict:
    wrong: dict[str, list[str]] = field(default_factory=partial(defaultdict, list))
    seconds: float | None = None  # from the fault, or the end of the timeout, to the last rank's error


def judge(trial: Trial, outcome: Outcome, within: float | None = None) -> Verdict:
    """`within`: seconds that an error may take."""
    verdict = Verdict()
    for text in outcome.left:
        verdict.wrong["left"].append(text)
    for rank in range(trial.everyone):
        _judge_end(trial, rank, outcome.stories[rank], verdict)
    if trial.newcomers:
        _judge_joins(trial, outcome.stories, verdict)
    else:
        for side in _sides(trial):
            _judge_side(trial, side, outcome.stories, verdict)
    if within is not None and (verdict.seconds or 0) > within:
        verdict.wrong["slow"].append(f"the last error came after {verdict.seconds:.2f} s")
    return verdict


@dataclass(frozen=True)
class _Side:
    """Ranks that can talk to each other to the end, and those that they lose."""

    ranks: tuple[int, ...]
    lost: tuple[int, ...]
    first: tuple[int, ...]  # those of the lost that fail before the others
    goes_on: bool = True  # the other side of a cut must not


def _sides(trial: Trial) -> list[_Side]:
    every = range(trial.world)
    first = (trial.faults[0].rank,) if trial.moment == "shrink" else trial.victims
    if trial.kind == "cut":
        rest = tuple(rank for rank in every if rank not in trial.victims)
        goes_on = (len(rest), -min(rest)) > (len(trial.victims), -min(trial.victims))
        return [_Side(rest, trial.victims, first, goes_on), _Side(trial.victims, rest, rest, not goes_on)]
    if trial.kind in (*HARMLESS, "too late", "mismatch"):  # whoever was late goes on with the others
        lost = tuple(fault.rank for fault in trial.faults if fault.how in ENDS)
        return [_Side(tuple(rank for rank in every if rank not in lost), lost, first)]
    return [_Side(tuple(rank for rank in every if rank not in trial.victims), trial.victims, first)]


def _judge_end(trial: Trial, rank: int, story: Story, verdict: Verdict) -> None:
    """How the rank's process ended."""
    fault = trial.fault_of(rank)
    how = "" if fault is None else fault.how
    local = trial.transport == "local"
    if how == "pause":
        how = "late"
    if "crashed" in story.events:
        verdict.wrong["error"].append(f"rank {rank} crashed: {story.events['crashed']}")
    elif how not in ("kill", *STAYS) and not local and story.status is None:
        verdict.wrong["error"].append(f"rank {rank} hangs")
    elif how not in ("kill", *STAYS) and not local and story.status != 0:
        verdict.wrong["error"].append(f"rank {rank} ended with status {story.status}")
    if "wrong" in story.events:
        verdict.wrong["values"].append(f"rank {rank}: {story.events['wrong']}")
    for text in story.events.get("left", ()):
        verdict.wrong["left"].append(f"rank {rank}: {text}")
    # Of two that fail at once, one may have heard of the other before it could.
    own = ("ClosedError", "PeerLost") if trial.kind == "two" else ("ClosedError",)
    if how == "close" and story.events.get("error", {}).get("type") not in own:
        verdict.wrong["error"].append(f"rank {rank} closed, and then: {_said(story, 'error')}")


def _judge_side(trial: Trial, side: _Side, stories: list[Story], verdict: Verdict) -> None:
    promised = _promised(trial)
    if not promised:
        for rank in side.ranks:
            if "finished" not in stories[rank].events:
                verdict.wrong["error"].append(f"rank {rank} should have gone on; {_said(stories[rank])}")
        return
    joined = tuple(rank for rank in side.ranks if "joined" in stories[rank].events)
    for rank in side.ranks:
        _judge_error(trial, side, rank, stories[rank], promised, verdict)
        _take_time(trial, side, stories, rank, verdict)
    with_error = [rank for rank in joined if "error" in stories[rank].events]
    if trial.moment == "shrink" and trial.kind != "late":
        _judge_disturbed(trial, side, with_error, stories, verdict)
    elif trial.kind in STAYS and (trial.timeout is None or trial.transport == "local"):
        for rank in with_error:
            _judge_vain(rank, side.lost, stories[rank], verdict)
    elif not side.goes_on:
        for rank in with_error:
            error = stories[rank].events.get("shrink")
            if error is None or _named(error) != ("MinorityError", min(side.lost)):
                said = _said(stories[rank], "shrink", "members", "after")
                verdict.wrong["agreement"].append(
                    f"rank {rank} is cut off with {side.ranks}, and must not go on without {side.lost}; {said}"
                )
    else:
        for rank in with_error:
            found = stories[rank].events.get("members")
            if found != list(joined):
                said = _said(stories[rank], "shrink", "after")
                verdict.wrong["agreement"].append(
                    f"rank {rank} is left with {found}, not {list(joined)}; {said}"
                )


def _judge_joins(trial: Trial, stories: list[Story], verdict: Verdict) -> None:
    """In the end all that live are together."""
    together = [rank for rank in range(trial.everyone) if rank not in trial.lost_for_good]
    struck = [stories[rank].events.get("fault") for rank in trial.lost_for_good]
    first = min((at for at in struck if at is not None), default=None)
    for rank in together:
        events = stories[rank].events
        if sorted(events.get("members") or ()) != together:
            verdict.wrong["agreement"].append(f"rank {rank} is not with {together}; {_said(stories[rank])}")
        if "misblamed" in events:
            verdict.wrong["rank"].append(f"rank {rank}: {events['misblamed']}")
        if "error" in events and first is not None:
            verdict.seconds = max(verdict.seconds or 0.0, events["error"]["at"] - first)


def _promised(trial: Trial) -> tuple[str, ...]:
    """The errors that are right; none: nothing may fail."""
    if trial.kind in HARMLESS and trial.moment != "shrink":
        return ()
    if trial.moment == "shrink":
        return ("PeerLost",)
    if trial.moment == "init" and trial.kind in ENDS:  # one that has not come yet is missed, not lost
        return ("PeerLost", "TimeoutError")
    if trial.kind == "mismatch":
        return ("MismatchError",)
    return ("TimeoutError",) if trial.kind in HANGS else ("PeerLost",)


def _judge_error(
    trial: Trial, side: _Side, rank: int, story: Story, promised: tuple[str, ...], verdict: Verdict
) -> None:
    error = story.events.get("error") or story.events.get("init")
    if error is None or error["type"] not in promised:
        wanted = " or ".join(promised)
        verdict.wrong["error"].append(f"rank {rank}: {wanted} was promised; {_said(story, 'error', 'init')}")
        return
    # Whoever comes to a meeting that has failed already finds that rank 0 has left.
    too_late = trial.moment == "init" and "init" in story.events and error["rank"] == 0 and rank != 0
    if trial.kind != "mismatch" and not too_late and error["rank"] not in side.first:
        verdict.wrong["rank"].append(f"rank {rank} blames {error['rank']}, not {side.first}: {error['text']}")
    again = story.events.get("again")
    if "error" in story.events and (again is None or (again["type"], again["rank"]) != _named(error)):
        verdict.wrong["error"].append(f"rank {rank} said {_named(error)}, and then {_said(story, 'again')}")


def _judge_disturbed(
    trial: Trial, side: _Side, ranks: list[int], stories: list[Story], verdict: Verdict
) -> None:
    """After a second rank failed in shrink()."""
    second = trial.faults[1].rank
    with_second = sorted([*side.ranks, second])
    blamed = {"shrink": second, "after": with_second.index(second)}
    promised = "PeerLost" if trial.kind in ENDS else "TimeoutError"
    ways = set()
    for rank in ranks:
        events = stories[rank].events
        what = next((what for what in ("shrink", "after", "members") if what in events), None)
        if what == "members" and events["members"] == list(side.ranks) and trial.kind in ENDS:
            ways.add("without it")
        elif what in blamed and _named(events[what]) == (promised, blamed[what]):
            ways.add("lost it")
        else:
            ways.add("otherwise")
            verdict.wrong["agreement"].append(f"rank {rank}: {_said(stories[rank], 'shrink', 'after')}")
    if len(ways) > 1:
        verdict.wrong["agreement"].append(f"some go on without rank {second}, and some do not")


def _judge_vain(rank: int, missing: tuple[int, ...], story: Story, verdict: Verdict) -> None:
    """A rank that lives but does not call shrink() is waited for, and named."""
    error = story.events.get("shrink")
    if error is None or error["type"] != "TimeoutError" or error["rank"] not in missing:
        said = _said(story, "shrink", "after")
        verdict.wrong["agreement"].append(
            f"rank {rank}: shrink() should have waited in vain for {missing}; {said}"
        )


def _take_time(trial: Trial, side: _Side, stories: list[Story], rank: int, verdict: Verdict) -> None:
    if trial.kind == "too late" and rank in trial.victims:
        return  # it hears of it as soon as it comes
    error = stories[rank].events.get("error") or stories[rank].events.get("init")
    faults = [stories[victim].events.get("fault") for victim in trial.victims]
    if trial.moment == "shrink":
        faults = [stories[trial.faults[0].rank].events.get("fault")]
    struck = min((at for at in faults if at is not None), default=None)
    if error is None or struck is None:
        return
    since = max(struck, error["began"])
    if error["type"] == "TimeoutError":
        since = max(struck, error["began"] + (trial.timeout or trial.patience))
    verdict.seconds = max(verdict.seconds or 0.0, error["at"] - since, 0.0)


def _named(error: dict[str, Any]) -> tuple[str, int | None]:
    return error["type"], error["rank"]


def _said(story: Story, *what: str) -> str:
    """What the rank has reported, for a person."""
    found = {name: event for name, event in story.events.items() if not what or name in what}
    return f"said {found}" if found else "said nothing"
