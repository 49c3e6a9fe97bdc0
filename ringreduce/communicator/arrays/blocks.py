"""Blocks of rows, one for each rank: their lengths, and new arrays for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce._engine import values
from ringreduce.annotations import Array
from ringreduce.communicator.arrays import arrays

MOST = 1 << 47  # rows: more than any machine can hold, but few enough for 64-bit sizes


def sizes(x: Array, counts: Sequence[int] | None, world: int, name: str = "counts") -> list[int] | None:
    """Returns the number of elements in each rank's block of x, given its rows. None means equal blocks."""
    if counts is None:
        return None
    if isinstance(counts, str) or not hasattr(counts, "__len__"):
        raise TypeError(
            f"{name} must be a sequence of integers, one for each rank, not {type(counts).__name__}"
        )
    if len(counts) != world:
        raise ValueError(f"{name} must have one number for each of the {world} ranks, not {len(counts)}")
    size = arrays.row_size(x)
    return [values.whole(count, f"each of {name}", 0, MOST) * size for count in counts]


def new_rows(x: Array, rows: int) -> Any:
    """Returns an array like x with this number of rows."""
    return arrays.like(x, (rows, *arrays.shape_of(x)[1:]))


def new_block(x: Array, counts: Sequence[int] | None, world: int, rank: int) -> Any:
    """Returns an array for a rank's block of x."""
    if counts is not None:
        sizes(x, counts, world)  # raises if counts is invalid
        return new_rows(x, counts[rank])
    rows = arrays.rows(x)
    if rows % world:
        raise ValueError(f"x has {rows} rows, which do not divide evenly among {world} ranks")
    return new_rows(x, rows // world)


def new_whole(x: Array, counts: Sequence[int] | None, world: int) -> Any:
    """Returns an array for all ranks' blocks, one of which is x."""
    return new_rows(x, arrays.rows(x) * world if counts is None else sum(counts))
