"""All-reduces for a torus that use the links of all directions at once, as examples of algorithms for a study.

The buffer is cut into a part for each direction. Each part is reduced separately along its own links. The plain parts
begin with different dimensions, and the mirrored ones are their mirror images (De Sensi et al., NSDI 2024, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from ringreduce.schedules import Recv, Round, Schedule, Send

Span = tuple[int, int]
Message = tuple[int, int, Span, Span, bool]  # to, from, chunks sent, chunks received, whether these are added
Algorithm = Callable[[int, int], Schedule]


def schedule(world: int, rank: int, chunks: int, parts: Sequence[Iterator[Message]]) -> Schedule:
    """Returns the schedule of parts that proceed side by side, each with a message per round.

    Messages to the same peer are sent as one.
    """
    rounds = []
    for messages in zip(*parts, strict=True):
        sends: dict[int, list[Span]] = {}
        recvs: dict[tuple[int, bool], list[Span]] = {}
        for to, source, out, back, reduce in messages:
            sends.setdefault(to, []).append(out)
            recvs.setdefault((source, reduce), []).append(back)
        rounds.append(
            Round(
                [Send(spans, [to]) for to, spans in sends.items()],
                [Recv(spans, source, reduce) for (source, reduce), spans in recvs.items()],
            )
        )
    return Schedule("all_reduce", world, rank, chunks, rounds)


# --- exchanges in pairs: Swing, and recursive doubling ----------------------------------------------------------


def swing(place: int, step: int, length: int) -> int:
    """Returns the peer of a node on a ring, by equation 2 of the paper."""
    reach = (1 - (-2) ** (step + 1)) // 3
    return (place + (reach if place % 2 == 0 else -reach)) % length


def doubling(place: int, step: int, length: int) -> int:
    return int(place ^ (1 << step)) % length


Partner = Callable[[int, int, int], int]


@lru_cache
def partners(dims: tuple[int, ...], partner: Partner, first: int, mirrored: bool) -> np.ndarray:
    """Returns the peer for each step and node. Dimensions take turns, beginning with the first."""
    world, steps = math.prod(dims), []
    places = np.array(np.unravel_index(range(world), dims))
    for step in range(round(math.log2(world))):
        axis = (first + step) % len(dims)
        length, far = dims[axis], step // len(dims)
        if mirrored:
            line = [-partner(-place % length, far, length) % length for place in range(length)]
        else:
            line = [partner(place, far, length) for place in range(length)]
        others = places.copy()
        others[axis] = np.array(line)[places[axis]]
        steps.append(np.ravel_multi_index(tuple(others), dims))
    return np.array(steps)


@lru_cache
def labels(dims: tuple[int, ...], partner: Partner, first: int, mirrored: bool) -> np.ndarray:
    """Returns numbers for the nodes, such that a node always sends consecutive blocks.

    The numbers of two nodes that exchange in a step have all bits of earlier steps in common, and differ in the bit of
    this step.
    """
    found = partners(dims, partner, first, mirrored)
    group = np.arange(found.shape[1])  # the groups of nodes that later steps join, named by their lowest node
    label = np.zeros_like(group)
    for bit, others in enumerate(reversed(found)):
        label |= (group > group[others]).astype(int) << bit
        group = np.minimum(group, group[others])
    return label


def exchanges(dims: Sequence[int], partner: Partner, ports: int, halving: bool) -> Algorithm:
    """Returns an algorithm in which pairs exchange all they have (few rounds), or halves and quarters (few bytes)."""
    world, shape = math.prod(dims), tuple(dims)

    def part(number: int, rank: int) -> Iterator[Message]:
        kind = (shape, partner, number % len(shape), number >= len(shape))
        steps = [int(other) for other in partners(*kind)[:, rank]]
        if not halving:
            for other in steps:
                yield other, other, (number, 1), (number, 1), True
            return
        label, runs = labels(*kind), []
        for step, other in enumerate(steps):
            length = world >> (step + 1)
            theirs, mine = (
                (number * world + int(label[one]) // length * length, length) for one in (other, rank)
            )
            runs.append((other, theirs, mine))
            yield other, other, theirs, mine, True
        for other, theirs, mine in reversed(runs):
            yield other, other, mine, theirs, False

    def algorithm(world: int, rank: int) -> Schedule:
        chunks = ports * world if halving else ports
        return schedule(world, rank, chunks, [part(number, rank) for number in range(ports)])

    return algorithm


# --- rings ------------------------------------------------------------------------------------------------------


def ring_steps(place: int, length: int, sign: int) -> Iterator[tuple[int, int, bool]]:
    """Yields the block sent and the block received in each step of a reduce-scatter along a ring and its all-gather."""
    for step in range(length - 1):
        yield (place - sign * step) % length, (place - sign * (step + 1)) % length, True
    for step in range(length - 1):
        yield (place - sign * (step - 1)) % length, (place - sign * step) % length, False


def buckets(dims: Sequence[int]) -> Algorithm:
    """Returns an algorithm with rings along one of two dimensions after the other, and back in the reverse order."""
    rows, columns = dims
    assert rows == columns
    length = rows

    def part(number: int, rank: int) -> Iterator[Message]:
        axis, sign = number % 2, 1 if number < 2 else -1
        at = divmod(rank, length)
        base = number * length * length
        outer, inner = list(ring_steps(at[axis], length, sign)), list(ring_steps(at[1 - axis], length, sign))
        own = (at[axis] + sign) % length  # the slab that the rank has after the first dimension

        def to(along: int, by: int) -> int:
            moved = list(at)
            moved[along] = (moved[along] + by) % length
            return moved[0] * length + moved[1]

        def slabs(steps: Sequence[tuple[int, int, bool]]) -> Iterator[Message]:
            for out, back, add in steps:
                spans = ((base + block * length, length) for block in (out, back))
                yield to(axis, sign), to(axis, -sign), *spans, add

        yield from slabs(outer[: length - 1])
        for out, back, add in inner:
            spans = ((base + own * length + block, 1) for block in (out, back))
            yield to(1 - axis, sign), to(1 - axis, -sign), *spans, add
        yield from slabs(outer[length - 1 :])

    def algorithm(world: int, rank: int) -> Schedule:
        return schedule(world, rank, 4 * world, [part(number, rank) for number in range(4)])

    return algorithm


def hamiltonian_rings(dims: Sequence[int]) -> Algorithm:
    """Returns an algorithm with two rings through all nodes of a square torus, in both directions.

    The rings share no link (Gray codes of Lee distance 1).
    """
    length, columns = dims
    assert length == columns
    world = length * length
    one = [x // length * length + (x % length - x // length) % length for x in range(world)]
    rings = [one, [node % length * length + node // length for node in one]]

    def part(number: int, rank: int) -> Iterator[Message]:
        ring, sign = rings[number % 2], 1 if number < 2 else -1
        place = ring.index(rank)
        after, before = ring[(place + sign) % world], ring[(place - sign) % world]
        for out, back, add in ring_steps(place, world, sign):
            yield after, before, (number * world + out, 1), (number * world + back, 1), add

    def algorithm(world: int, rank: int) -> Schedule:
        return schedule(world, rank, 4 * world, [part(number, rank) for number in range(4)])

    return algorithm
