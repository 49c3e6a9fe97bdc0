"""The chunks that the ranks of a schedule send each other, and what each rank holds after each round."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringreduce.schedules import Schedule
from ringreduce.schedules.collectives import COLLECTIVES

__all__ = ["Move", "Value", "is_result", "moves", "states"]

Value = frozenset[tuple[int, int]]
"""The contents of a chunk: the (rank, chunk) pairs that were added to make it. Empty if it holds nothing."""


@dataclass(frozen=True)
class Move:
    """A chunk that moves from one rank to another, or within a rank.

    Attributes:
        sender: The rank that it comes from.
        source: The chunk that it comes from.
        begins: The sender's round.
        receiver: The rank that it goes to.
        target: The chunk that it goes to.
        ends: The receiver's round.
        adds: Whether it is reduced into the target. Otherwise it replaces the target.
    """

    sender: int
    source: int
    begins: int
    receiver: int
    target: int
    ends: int
    adds: bool


def _chunks(spans: Sequence[int | tuple[int, int]]) -> list[int]:
    pairs = (span if isinstance(span, tuple) else (span, 1) for span in spans)
    return [chunk for first, count in pairs for chunk in range(first, first + count)]


def moves(schedules: Sequence[Schedule]) -> Iterator[Move]:
    """Yields every chunk that is sent or copied. The empty messages of a barrier count as chunk 0, added."""
    sent: dict[tuple[int, int], deque[tuple[int, list[int]]]] = defaultdict(deque)
    for plan in schedules:
        for number, one in enumerate(plan.rounds):
            for send in one.sends:
                for peer in send.peers:
                    sent[plan.rank, peer].append((number, _chunks(send.chunks)))
    for plan in schedules:
        for number, one in enumerate(plan.rounds):
            for recv in one.recvs:
                begins, sources = sent[recv.peer, plan.rank].popleft()
                targets = _chunks(recv.chunks)
                adds = recv.reduce or not targets
                for source, target in zip(sources or [0], targets or [0], strict=True):
                    yield Move(recv.peer, source, begins, plan.rank, target, number, adds)
            for local in one.locals:
                for source, target in zip(_chunks([local.source]), _chunks([local.to]), strict=True):
                    yield Move(plan.rank, source, number, plan.rank, target, number, local.reduce)


def _at_first(plan: Schedule, chunk: int) -> Value:
    before = COLLECTIVES[plan.collective].before
    holds = {"own_block": chunk, "on_root": plan.root}.get(before, plan.rank) == plan.rank
    is_scratch = chunk >= max(plan.chunks, 1)
    return frozenset({(plan.rank, chunk)} if holds and not is_scratch else ())


def is_result(plan: Schedule, chunk: int) -> bool:
    """Returns whether this chunk holds a part of the rank's result at the end."""
    if chunk >= plan.chunks:
        return False
    after = COLLECTIVES[plan.collective].after
    if after == "on_root":
        return plan.rank == plan.root
    if after == "before_own":
        return plan.rank > 0
    return chunk == plan.rank or after != "own_block"


def states(schedules: Sequence[Schedule]) -> list[list[list[Value]]]:
    """Returns the contents of chunks: by rank, by the number of rounds that the rank has completed, and by chunk."""
    arriving = defaultdict(list)
    for move in moves(schedules):
        arriving[move.receiver, move.ends].append(move)
    held = [[[_at_first(plan, c) for c in range(max(plan.chunks, 1) + plan.scratch)]] for plan in schedules]
    behind = [plan for plan in schedules if plan.rounds]
    while behind:  # ends, because the checker has proved that the schedules do not block
        for plan in behind:
            number = len(held[plan.rank]) - 1
            comes = arriving[plan.rank, number]
            if all(len(held[move.sender]) > move.begins for move in comes):
                now = list(held[plan.rank][-1])
                for move in comes:
                    value = held[move.sender][move.begins][move.source]
                    now[move.target] = now[move.target] | value if move.adds else value
                held[plan.rank].append(now)
        behind = [plan for plan in behind if len(held[plan.rank]) <= len(plan.rounds)]
    return held
