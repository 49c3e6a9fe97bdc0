"""Random sequences of calls on one group: whatever one of them leaves behind must not show in the next.

By hand and for long: python -m tests.communicator.collectives.test_stress [seconds] [first seed]
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import numpy as np
import pytest

import ringreduce
from tests.communicator.collectives.calls import COLLECTIVES, ROOTED, Call, algorithms, check, perform, verify
from tests.conftest import on_processes, on_threads, slowly

SIZES = [0, 1, 2, 9, 10, 11, 63, 64, 65, 1000, 4095, 4096, 4097, 16_384, 50_001, 65_536, 131_073, 200_003]
DTYPES = [np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8]


def random_counts(dice: random.Random, collective: str, world: int) -> Any:
    def sizes() -> tuple[int, ...]:
        return tuple(
            dice.choice([0, 1, dice.choice(SIZES) // world, dice.randrange(40_000)]) for _ in range(world)
        )

    return tuple(sizes() for _ in range(world)) if collective == "all_to_all" else sizes()


def random_call(dice: random.Random, world: int) -> Call:
    """The same on all ranks."""
    collective = dice.choice([*COLLECTIVES, "all_reduce", "all_reduce"])
    uneven = (
        collective in {"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"}
        and dice.random() < 0.3
    )
    counts = random_counts(dice, collective, world) if uneven else None
    exchange = counts is not None and collective == "all_to_all"
    return Call(
        collective,
        count=dice.choice(SIZES),
        algorithm="auto" if exchange else dice.choice(algorithms(collective)),
        root=dice.randrange(world) if collective in ROOTED else 0,
        op=dice.choice(["sum", "sum", "max", "min"]),
        mode=dice.choice(["out", "new"] if exchange else ["in_place", "in_place", "out", "new"]),
        dtype=dice.choice(DTYPES),
        counts=counts,
    )


def own_buffers(dice: random.Random, call: Call) -> Call:
    """What each rank chooses for itself."""
    return Call(**{
        **vars(call),
        "shared_in": dice.random() < 0.6,
        "shared_out": dice.random() < 0.6,
        "offset": dice.choice([0, 0, 1, 5, 16]),
    })  # fmt: skip


class Stress:
    """One rank's part. Keeps some asynchronous calls under way between the others."""

    def __init__(self, comm: Any, seed: int) -> None:
        self.comm = comm
        self.common = random.Random(seed)
        self.own = random.Random(f"{seed}/{comm.rank}")
        self.under_way: list[tuple[Call, Any, Any, Any]] = []

    def step(self) -> None:
        call = own_buffers(self.own, random_call(self.common, self.comm.size))
        kind = self.common.random()
        if kind < 0.2:
            self.under_way.append((call, *perform(self.comm, call, async_op=True)))
        elif kind < 0.3:
            self.messages()
        else:
            check(self.comm, call)
        if len(self.under_way) > 3:
            self.settle()

    def settle(self) -> None:
        self.own.shuffle(self.under_way)
        for call, x, out, work in self.under_way:
            verify(call, self.comm.rank, self.comm.size, x, out, work.wait(30))
        self.under_way.clear()

    def messages(self) -> None:
        """Everybody sends to everybody, while a collective may be under way."""
        comm, count, shared = self.comm, self.common.choice(SIZES), self.own.random() < 0.5
        others = [peer for peer in range(comm.size) if peer != comm.rank]
        new = ringreduce.empty if shared else np.empty
        sent, received = new(count, "float32"), {peer: new(count, "float32") for peer in others}
        sent[:] = comm.rank
        works = [comm.recv(received[peer], peer, async_op=True) for peer in others]
        works += [comm.send(sent, peer, async_op=True) for peer in others]
        for work in works:
            work.wait(30)
        for peer in others:
            assert (received[peer] == peer).all(), f"{count} elements from rank {peer}"


def stress(comm: Any, seed: int, seconds: float) -> int:
    rank = Stress(comm, seed)
    began, steps, go = time.monotonic(), 0, np.ones(1, "int32")
    while go[0]:
        for _ in range(20):
            rank.step()
            steps += 1
        rank.settle()
        go[0] = time.monotonic() - began < seconds
        comm.all_reduce(go, "min")
    return steps


@pytest.mark.parametrize("seconds", [0.5, *slowly(3.0)])
@pytest.mark.parametrize("world", [3, *slowly(2, 5)])
def test_random_calls(world, seconds, on_ranks):
    on_ranks(world, stress, world, seconds)


def main(seconds: float, seed: int) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for run in (on_threads, on_processes):
            world = 2 + seed % 5
            print(f"seed {seed}, {world} ranks, {run.__name__}", flush=True)
            print(run(world, stress, seed, 5.0)[0], "calls", flush=True)
        seed += 1


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]) if given else 60.0, int(given[1]) if len(given) > 1 else 0)
