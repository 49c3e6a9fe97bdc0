"""Problems to time (a collective or point-to-point messages), their input values, and the expected results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

FACTS = {
    "all_reduce": (True, "whole", "whole"),
    "reduce_scatter": (True, "whole", "own_block"),
    "all_gather": (False, "own_block", "whole"),
    "broadcast": (False, "on_root", "whole"),
    "reduce": (True, "whole", "on_root"),
    "gather": (False, "own_block", "on_root"),
    "scatter": (False, "on_root", "own_block"),
    "all_to_all": (False, "exchanged", "exchanged"),
    "scan": (True, "whole", "up_to_own"),
    "exscan": (True, "whole", "before_own"),
    "barrier": (False, "nothing", "nothing"),
}
"""Whether a collective reduces, and what a rank's buffer holds before and after it: a part of
ringreduce.schedules.COLLECTIVES, which the Pythons of the MPIs lack."""
UNEVEN = {f"{name}_v": name for name, (_, *holds) in FACTS.items() if {"own_block", "exchanged"} & {*holds}}
"""The forms for blocks of different lengths, which take counts."""
BLOCKWISE = (*UNEVEN.values(), *UNEVEN)
"""Collectives whose buffers hold a block for each rank."""
MESSAGES = {"send_recv": 2, "send": 16, "send_recv_pairs": 2, "send_pairs": 16}
"""Point-to-point operations, with the number of messages that a call sends one after the other.

send_recv is a message from rank 0 to rank 1 and one back. send is a stream of messages from rank 0 to rank 1. In the
operations with pairs, each rank of the first half does this with one of the second half, all at once. Times are those
of one message.
"""
STREAMS = ("send", "send_pairs")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Problem:
    """A problem to time. ``nbytes`` is the size of the whole buffer (the blocks of all ranks), as in nccl-tests.

    Few programs exchange blocks in place, so an all-to-all always has a separate array for its result.
    """

    collective: str
    nbytes: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = True
    root: int = 0

    @property
    def count(self) -> int:
        return self.nbytes // numpy_dtype(self.dtype).itemsize

    @property
    def plain(self) -> str:
        """The collective, without the ending of its form for uneven blocks."""
        return UNEVEN.get(self.collective, self.collective)

    @property
    def separate(self) -> bool:
        """Whether the result goes to an array of its own."""
        return not self.in_place or self.plain == "all_to_all"

    def blocks(self, rank: int, ranks: int) -> list[slice]:
        """Returns the blocks of a rank's whole buffer.

        Uneven ones grow with the rank. In an all-to-all, each pair of ranks sends each other as much.
        """
        bounds = [self.count // ranks * each for each in range(ranks + 1)]
        if self.collective in UNEVEN:
            bounds = [self.count * each * (each + 1) // (ranks * (ranks + 1)) for each in range(ranks + 1)]
        lengths = [end - begin for begin, end in pairwise(bounds)]
        if self.plain == "all_to_all":
            lengths = [lengths[(rank + other) % ranks] for other in range(ranks)]
        ends = list(accumulate(lengths))
        return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


# The largest integer up to which each type represents all integers.
EXACT = {
    "float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "float8_e4m3fn": 1 << 4,
    "float8_e5m2": 1 << 3, "int64": 1 << 62, "int32": 1 << 30, "int16": (1 << 15) - 1, "int8": (1 << 7) - 1,
    "uint8": (1 << 8) - 1, "bool": 1, "uint16": (1 << 16) - 1, "uint32": 1 << 31, "uint64": 1 << 62,
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        try:
            import ml_dtypes
        except ImportError as error:
            raise ValueError(f"{name} needs ml_dtypes: pip install 'ringreduce[bench]'") from error
        name = getattr(ml_dtypes, name)
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def fill(
    rank: int, count: int, iteration: int, dtype: str = "float32", op: str = "sum", ranks: int = 2
) -> Array:
    """Returns input values that give the same result in any order of combining, in every dtype."""
    seed = np.uint32((rank * 2 + (iteration & 1) + 1) * 2246822519 & 0xFFFFFFFF)
    index = np.arange(1, count + 1, dtype=np.uint32)
    index *= np.uint32(2654435761)
    index += seed
    values = np.right_shift(index, np.uint32(24), out=index)
    exact, factor = EXACT[dtype], 1
    if op == "prod":
        values = values % 2 + 1 if rank < 3 else np.ones_like(values)
    elif op == "avg":  # the sum must be divisible by the number of ranks
        limit, factor = min(256, exact // ranks**2 + 1), ranks
        values = values % np.uint32(limit)
    elif op == "sum" and dtype != "bool" and rank >= exact:
        values = np.zeros_like(values)
    else:
        terms = min(ranks, exact) if op == "sum" and dtype != "bool" else 1
        limit = min(256, exact // terms + 1)
        values = values % np.uint32(limit) if limit < 256 else values
    typed = values.astype(np.float32).astype(numpy_dtype(dtype), copy=False)
    return np.multiply(typed, factor, dtype=typed.dtype) if factor > 1 else typed


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def partner(collective: str, rank: int, ranks: int) -> int | None:
    """Returns the rank at the other end of a point-to-point operation, or None if this rank takes no part."""
    half = ranks // 2 if collective.endswith("_pairs") else 1
    if rank >= 2 * half or ranks < 2:
        return None
    return rank + half if rank < half else rank - half


def receives(collective: str, rank: int, ranks: int) -> bool:
    """Returns whether this rank's result is a message that it receives."""
    other = partner(collective, rank, ranks)
    return other is not None and (collective not in STREAMS or rank > other)


def messages(
    collective: str, rank: int, other: int | None, send: Callable[[int], Any], recv: Callable[[int], Any]
) -> Callable[[], None]:
    """Returns the call of a point-to-point operation. ``send`` and ``recv`` take the rank at the other end."""
    if other is None:
        return lambda: None
    first, second = (send, recv) if rank < other else (recv, send)

    def there_and_back() -> None:
        first(other)
        second(other)

    def stream() -> None:
        for _ in range(MESSAGES[collective]):
            first(other)

    return stream if collective in STREAMS else there_and_back


def expected(rank: int, ranks: int, problem: Problem, iteration: int) -> Array:
    """Returns the expected result on this rank."""
    count, collective = problem.count, problem.collective

    def of(other: int) -> Array:
        return fill(other, count, iteration, problem.dtype, problem.op, ranks)

    if collective in MESSAGES:
        other = partner(collective, rank, ranks)
        return of(rank)[:0] if other is None or not receives(collective, rank, ranks) else of(other)
    if collective == "scale":
        return np.multiply(of(rank), 2, dtype=numpy_dtype(problem.dtype))
    reduces, before, after = FACTS[problem.plain]
    own = problem.blocks(rank, ranks)[rank]
    if after == "nothing" or (after == "on_root" and rank != problem.root):
        return of(rank)[:0]
    if after == "exchanged":
        return np.concatenate([of(other)[problem.blocks(other, ranks)[rank]] for other in range(ranks)])
    if before == "own_block":
        return np.concatenate([of(other)[problem.blocks(other, ranks)[other]] for other in range(ranks)])
    prefixes = {"up_to_own": range(rank + 1), "before_own": range(rank)}
    givers = [problem.root] if before == "on_root" else prefixes.get(after, range(ranks))
    if not givers:
        return of(rank)[:0]
    total: Array = reduce(COMBINE[problem.op], map(of, givers))
    if problem.op == "avg" and reduces:
        total = (total / np.float32(ranks)).astype(total.dtype)
    return total[own] if after == "own_block" else total
