"""Blocks of rows, one for each rank: their lengths, and new arrays for them."""

from __future__ import annotations

from collections.abc import Sequence

from ringreduce import arrays
from ringreduce.arrays import Array


def sizes(x: Array, counts: Sequence[int] | None, world: int, name: str = "counts") -> list[int] | None:
    """Elements of each rank's block of x, from its rows; None for equal blocks."""
    if counts is None:
        return None
    _check(counts, world, name)
    size = arrays.row_size(x)
    return [int(count) * size for count in counts]


def new_rows(x: Array, rows: int) -> Array:
    """An array like x of so many rows."""
    return arrays.like(x, (rows, *arrays.shape_of(x)[1:]))


def new_block(x: Array, counts: Sequence[int] | None, world: int, rank: int) -> Array:
    """An array for a rank's block of x."""
    if counts is not None:
        _check(counts, world, "counts")
        return new_rows(x, counts[rank])
    rows = arrays.rows(x, "x")
    if rows % world:
        raise ValueError(f"x has {rows} rows, which do not divide among {world} ranks")
    return new_rows(x, rows // world)


def new_whole(x: Array, counts: Sequence[int] | None, world: int) -> Array:
    """An array for the blocks of all ranks, of which x is one."""
    return new_rows(x, arrays.rows(x, "x") * world if counts is None else sum(counts))


def _check(counts: Sequence[int], world: int, name: str) -> None:
    if len(counts) != world:
        raise ValueError(f"{name} must have one number for each of the {world} ranks, not {len(counts)}")
    if any(count < 0 for count in counts):
        raise ValueError(f"{name} must not be negative: {list(counts)}")
