"""A second opinion: runs all ranks' schedules on real numbers, as slowly and plainly as can be.

It shares nothing with the C++ checker: no symbols, no hash-consing, just repeated looking for two ranks whose
rounds have the two ends of a message.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ringreduce.schedules import Schedule

SUMS = ("all_reduce", "reduce_scatter", "reduce", "scan", "exscan")


def numbers(spans):
    return [chunk for first, count in spans for chunk in range(first, first + count)]


def has_result(plan: Schedule, chunk: int) -> bool:
    if plan.collective in ("reduce_scatter", "scatter"):
        return chunk == plan.rank
    if plan.collective in ("reduce", "gather"):
        return plan.rank == plan.root
    return plan.collective != "exscan" or plan.rank > 0


def contributors(plan: Schedule) -> int:
    return {"scan": plan.rank + 1, "exscan": plan.rank}.get(plan.collective, plan.world)


def has_value(plan: Schedule, chunk: int) -> bool:
    if plan.collective in ("all_gather", "gather"):
        return chunk == plan.rank
    if plan.collective in ("broadcast", "scatter"):
        return plan.rank == plan.root
    return True


@dataclass
class Rank:
    plan: Schedule
    values: list[Any]
    heard: set[int]
    round: int = 0
    sent: set[int] = field(default_factory=set)
    got: dict[int, Any] = field(default_factory=dict)

    def done(self) -> bool:
        return self.round == len(self.plan.rounds)

    def last_write(self, chunk: int) -> int:
        return max(
            k
            for k, r in enumerate(self.plan.rounds)
            if any(chunk in numbers(m.chunks) for m in r.recvs)
            or any(chunk in numbers([m.to]) for m in r.locals)
        )

    def finish(self) -> None:
        """Writes what the round brings; a sum that is a result and complete is divided by the world."""
        now, old, terms = self.plan.rounds[self.round], list(self.values), {}
        for recv in now.recvs:
            values, heard = self.got[recv.peer]
            self.heard |= heard
            for chunk, value in zip(numbers(recv.chunks), values, strict=True):
                if recv.reduce:
                    terms.setdefault(chunk, {self.plan.rank: old[chunk]})[recv.peer] = value
                else:
                    self.values[chunk] = value
        for local in now.locals:
            for to, source in zip(numbers([local.to]), numbers([local.source]), strict=True):
                self.values[to] = old[to] + old[source] if local.reduce else old[source]
        for chunk, by_rank in terms.items():
            ordered = [by_rank[rank] for rank in sorted(by_rank)]
            total = ordered[0]
            for value in ordered[1:]:
                total = total + value
            averages = self.plan.collective not in ("scan", "exscan")
            if averages and has_result(self.plan, chunk) and self.last_write(chunk) == self.round:
                total = total / self.plan.world
            self.values[chunk] = total
        self.round, self.sent, self.got = self.round + 1, set(), {}


def message_between(a: Rank, b: Rank):
    if a.done() or b.done() or b.plan.rank in a.sent or a.plan.rank in b.got:
        return None
    send = [s for s in a.plan.rounds[a.round].sends if b.plan.rank in s.peers]
    recv = [r for r in b.plan.rounds[b.round].recvs if r.peer == a.plan.rank]
    return send[0] if send and recv else None


def run(plans: list[Schedule], start: list[list[Any]]) -> list[Rank]:
    """All ranks after their last round; raises RuntimeError if they block each other."""
    ranks = []
    for plan, own in zip(plans, start, strict=True):
        values = [own[c] if has_value(plan, c) else None for c in range(plan.chunks)] + [None] * plan.scratch
        ranks.append(Rank(plan, values, {plan.rank}))
    while not all(rank.done() for rank in ranks):
        moved = False
        for a in ranks:
            for b in ranks:
                if a is not b and (send := message_between(a, b)):
                    b.got[a.plan.rank] = ([a.values[c] for c in numbers(send.chunks)], set(a.heard))
                    a.sent.add(b.plan.rank)
                    moved = True
        for rank in ranks:
            if rank.done():
                continue
            now = rank.plan.rounds[rank.round]
            if rank.sent == {p for s in now.sends for p in s.peers} and rank.got.keys() == {
                r.peer for r in now.recvs
            }:
                rank.finish()
                moved = True
        if not moved:
            raise RuntimeError("blocked")
    return ranks


def expected(plan: Schedule, chunk: int, start: list[list[Any]]) -> Any:
    if plan.collective in ("scan", "exscan"):
        return sum(values[chunk] for values in start[: contributors(plan)])
    if plan.collective in SUMS:
        return sum(values[chunk] for values in start) / plan.world
    if plan.collective in ("broadcast", "scatter"):
        return start[plan.root][chunk]
    if plan.collective == "all_to_all":
        return start[chunk][plan.rank]
    return start[chunk][chunk]


def is_right(plans: list[Schedule], seed: int = 0) -> bool:
    """Whether results are exactly right, averages included, and the same to the bit on all ranks."""
    draw = random.Random(seed)
    exact = [[Fraction(draw.getrandbits(60)) for _ in range(p.chunks)] for p in plans]
    floats = [[draw.uniform(-1, 1) * 10.0 ** draw.randint(-3, 3) for _ in range(p.chunks)] for p in plans]
    try:
        for rank in run(plans, exact):
            if plans[0].collective == "barrier" and rank.heard != set(range(len(plans))):
                return False
            for chunk in range(rank.plan.chunks):
                if has_result(rank.plan, chunk) and rank.values[chunk] != expected(rank.plan, chunk, exact):
                    return False
        if plans[0].collective == "all_reduce":
            return len({tuple(rank.values[: rank.plan.chunks]) for rank in run(plans, floats)}) == 1
    except (RuntimeError, TypeError, ValueError):  # blocked; a chunk that holds nothing; lengths that differ
        return False
    return True
