"""Says in a sentence which rank is missing in which call, from the state that the ranks of a job publish."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringreduce.diagnosis.ranks import GroupState, Rank, Wait
from ringreduce.diagnosis.stacks import where

__all__ = ["in_full", "in_words", "jobs", "verdicts"]


def jobs(ranks: Iterable[Rank]) -> list[list[Rank]]:
    """Returns the ranks of each job: those that are connected by groups. The largest job comes first."""
    found: list[tuple[set[str], list[Rank]]] = []
    for rank in ranks:
        keys, members = {group.key for group in rank.groups}, [rank]
        rest = []
        for known in found:
            if known[0] & keys:
                keys |= known[0]
                members = known[1] + members
            else:
                rest.append(known)
        found = [*rest, (keys, members)]
    every = [sorted(members, key=lambda rank: (rank.number, rank.pid)) for _, members in found]
    return sorted(every, key=len, reverse=True)


def in_words(numbers: Iterable[int]) -> str:
    """Returns "rank 3", "ranks 0 and 2" or "ranks 0, 1, 2 and 4 to 7"."""
    ordered = sorted(set(numbers))
    parts: list[str] = []
    while ordered:
        last = 0
        while last + 1 < len(ordered) and ordered[last + 1] == ordered[last] + 1:
            last += 1
        run, ordered = ordered[: last + 1], ordered[last + 1 :]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run)
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return ("rank " if len(parts) == 1 and " to " not in parts[0] else "ranks ") + text


@dataclass(frozen=True)
class _Place:
    """A rank of a group: the process, and the group as it sees it."""

    rank: Rank
    group: GroupState

    @property
    def waits(self) -> Wait | None:
        return None if self.rank.stopped else self.group.wait or self.group.message


def verdicts(job: Sequence[Rank], longer_than: float = 1.0) -> list[str]:
    """Returns a sentence for each group in which a rank delays others; none if no rank has waited that long.

    Args:
        job: the known ranks of a job, on all hosts.
        longer_than: seconds. Shorter waits do not count.
    """
    groups: dict[str, dict[int, _Place]] = defaultdict(dict)
    for rank in job:
        for group in rank.groups:
            if group.state == "open":
                groups[group.key][group.rank] = _Place(rank, group)
    alive = {rank.number for rank in job}
    several = (
        len({key for key, places in groups.items() if any(_active(place.group) for place in places.values())})
        > 1
    )
    found: list[str] = []
    edges: dict[int, set[int]] = defaultdict(set)  # who waits for whom, by number in the job
    ordered = sorted(groups.values(), key=lambda places: min(place.group.order for place in places.values()))
    for places in ordered:
        for sentence, waiting, late in _of_group(places, longer_than, several, alive):
            found.append(sentence)
            for one in waiting:
                edges[one] |= set(late)
    cycle = _cycle(edges)
    if len(cycle) > 1:
        found.insert(
            0, f"deadlock: {in_words(cycle)} wait for each other, in calls that they made in different orders"
        )  # fmt: skip
    found += [
        f"the group of {_members(place.group)} has failed on rank {rank.number}: {place.group.problem.splitlines()[0]}"
        for rank in job
        for place in (_Place(rank, group) for group in rank.groups)
        if place.group.state == "failed" and place.group.problem
    ][:1]
    return found


def _active(group: GroupState) -> bool:
    return group.begun > 0 or group.message is not None


def _of_group(
    places: dict[int, _Place], longer_than: float, several: bool, alive: set[int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yields each sentence, and the numbers of the ranks that wait and of those that they wait for."""
    any_place = next(iter(places.values()))
    group = any_place.group
    waiting = {
        rank: place
        for rank, place in places.items()
        if place.group.in_call and place.waits is place.group.wait is not None
        and place.group.wait.seconds >= longer_than
    }  # fmt: skip
    which = f" in the group of {_members(group)}" if several or len(group.members) != group.size else ""
    if waiting:
        front = max(place.group.begun for place in waiting.values())
        call = next(
            place.group.calls.get(front, "") for place in waiting.values() if place.group.begun == front
        )
        missing = [rank for rank in range(group.size) if rank not in places]
        late = [rank for rank, place in places.items() if place.group.begun < front]
        stuck = [
            rank for rank, place in places.items()
            if place.group.begun >= front and rank not in waiting and rank not in late
        ]  # fmt: skip
        blamed = missing + late or stuck
        who_waits = f"{in_words(group.name(rank) for rank in waiting)} {_verb(len(waiting), 'wait')} for it"
        longest = max(place.group.wait.seconds for place in waiting.values() if place.group.wait)
        for rank in sorted(blamed):
            here = places.get(rank)
            made = "has" if rank in stuck else "has not"
            text = (
                f"rank {group.name(rank)} {made} called #{front}, {call}{which}, "
                f"{_doing(rank, here, group, any_place.rank, alive)}; {who_waits}, for {longest:.0f} s"
            )
            yield text, [group.name(one) for one in waiting], [group.name(rank)]
        if not blamed:
            yield _circle(waiting, front, call, which), [], []
    for place in places.values():
        message = place.group.message
        if message is None or message.seconds < longer_than or place.rank.stopped:
            continue
        text = f"rank {place.group.name(place.group.rank)} has waited {message.seconds:.0f} s for {message.what}{which}"
        late_ranks = []
        if message.peer >= 0:
            doing = _doing(message.peer, places.get(message.peer), group, any_place.rank, alive)
            text += f"; rank {group.name(message.peer)}: {doing}"
            late_ranks = [group.name(message.peer)]
        yield text, [place.group.name(place.group.rank)], late_ranks


def _verb(count: int, verb: str) -> str:
    return verb + "s" if count == 1 else verb


def _members(group: GroupState) -> str:
    return in_words(group.members) if group.members else f"{group.size} ranks"


def _circle(waiting: dict[int, _Place], front: int, call: str, which: str) -> str:
    pairs = ", ".join(
        f"rank {place.group.name(rank)} for "
        + (f"rank {place.group.name(place.group.wait.peer)}" if place.group.wait.peer >= 0 else "any rank")
        for rank, place in waiting.items()
        if place.group.wait
    )
    return f"all known ranks have called #{front}, {call}{which}, and wait: {pairs}"


def _doing(rank: int, place: _Place | None, group: GroupState, other: Rank, alive: set[int]) -> str:
    """Says what an awaited rank does instead."""
    if place is None:
        if group.name(rank) in alive:
            return "and has left the group"
        # Hosts are numbered in the group; the one of a rank that is known tells which of them are here.
        here = group.hosts[group.rank] if group.hosts else None
        if group.hosts and group.hosts[rank] != here:
            return "and runs on another host: run `ringreduce diagnose` there, too"
        return f"and no longer exists on {other.host}: its process has ended"
    text = _doing_of(place)
    queued = place.group.queued
    return text + (f" ({queued} of its calls are queued)" if queued > 1 else "")


def _doing_of(place: _Place) -> str:
    rank, place_now = place.rank, where(place.rank.threads)
    if rank.stopped:
        return "and is stopped" + (f" (by a signal) in {place_now}" if place_now else " (by a signal)")
    for group in rank.groups:
        if group.key != place.group.key and group.wait is not None and group.in_call:
            call = group.calls.get(group.begun, "")
            return f"and waits in #{group.begun}, {call} of the group of {_members(group)}"
    for group in rank.groups:
        if group.message is not None:
            return f"and waits for {group.message.what}"
    if place.group.in_call and place.group.wait is not None:
        return f"and waits in #{place.group.begun}, {place.group.calls.get(place.group.begun, '')}"
    if place_now:
        return f"and is in {place_now}"
    last = place.group.calls.get(place.group.begun)
    text = (
        f"and runs; its last call was #{place.group.begun}, {last}"
        if last
        else "and has called nothing so far"
    )
    return text + (f" (no Python stack: {rank.no_stack})" if rank.no_stack else "")


def _cycle(edges: dict[int, set[int]]) -> list[int]:
    """Returns the ranks of a circle of waits, or none."""
    for start in edges:
        path: list[int] = [start]
        found = _search(edges, start, path, set())
        if found:
            return found
    return []


def _search(edges: dict[int, set[int]], start: int, path: list[int], seen: set[int]) -> list[int]:
    for after in sorted(edges.get(path[-1], ())):
        if after == start:
            return path
        if after not in seen:
            seen.add(after)
            found = _search(edges, start, [*path, after], seen)
            if found:
                return found
    return []


def in_full(rank: Rank, calls: int = 3) -> list[str]:
    """Returns all that is known of a rank, as lines."""
    state = ", stopped by a signal" if rank.stopped else ""
    lines = [f"rank {rank.number}: process {rank.pid} on {rank.host}{state}"]
    for group in rank.groups:
        what = "in" if group.in_call else "after"
        named = f"rank {group.rank} of {group.size}" if group.size else ""
        lines.append(
            f"  {named} over {group.transport}, {group.state}: {what} call #{group.begun}; {group.queued} queued"
        )
        lines += [f"    #{number} {group.calls[number]}" for number in sorted(group.calls)[-calls:]]
        for wait in (group.wait, group.message):
            if wait is not None:
                whom = f"rank {group.name(wait.peer)}" if wait.peer >= 0 else "any rank"
                lines.append(
                    f"    has waited {wait.seconds:.1f} s for {whom}"
                    + (f": {wait.what}" if wait.what else "")
                )
        if group.problem:
            lines.append(f"    {group.problem.splitlines()[0]}")
    for thread in rank.threads:
        lines.append(f"  thread {thread.name}")
        lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
    if rank.no_stack:
        lines.append(f"  no Python stack: {rank.no_stack}")
    return lines
