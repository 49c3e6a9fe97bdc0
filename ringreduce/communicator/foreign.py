"""The parts that the fronts for the arrays of other frameworks share: the description of a call, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ringreduce._engine import reduce, values
from ringreduce.communicator.communicator import Communicator

BY_ROWS = {"all_gather", "reduce_scatter", "all_to_all"}
OPS = [op for op in reduce.ops() if op != "premul_sum"]

Length = TypeVar("Length", int, "int | None")


@dataclass(frozen=True)
class Call:
    """A call of a communicator without its array, as known when it is traced.

    ``result`` is the shape and dtype of what recv and sendrecv receive.
    """

    name: str
    comm: Communicator
    op: str = "sum"
    root: int = 0
    dest: int = 0
    source: int = 0
    tag: int = 0
    result: tuple[tuple[int, ...], Any] | None = None

    @property
    def linear(self) -> bool:
        """Whether the result has derivatives."""
        return self.name not in ("send", "recv") and self.op in ("sum", "avg")


def check_dtype(name: str) -> None:
    """Raises TypeError if the engine does not have the dtype."""
    if name not in reduce.dtypes():
        raise TypeError(f"x has dtype {name}, but must have one of {', '.join(reduce.dtypes())}")


def check_op(op: str, dtype: str) -> None:
    """Raises ValueError if there is no such op, or if the dtype does not have it."""
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, not {op!r}")
    if not reduce.supports(dtype, op):
        raise ValueError(f"op {op!r} is not defined for {dtype}")


def rank_of(rank: int, argument: str, comm: Communicator) -> int:
    """Returns rank as an int. Raises ValueError or TypeError if it is not one."""
    return values.whole(rank, argument, 0, comm.size - 1, "a rank")


def tag_of(tag: int) -> int:
    """Returns tag as an int. Raises ValueError or TypeError if it is none that messages can have."""
    return values.whole(tag, "tag", -(1 << 31), (1 << 31) - 1)


def shape_after(collective: str, shape: Sequence[Length], size: int) -> tuple[Length, ...]:
    """Returns the shape of a collective's result.

    Args:
        shape: that of x. Lengths that are not known are None.
        size: the number of ranks.

    Raises:
        ValueError: x has no axis, or its rows are not divisible among the ranks.
    """
    if collective not in BY_ROWS:
        return tuple(shape)
    if not shape:
        raise ValueError(f"{collective} needs an array with at least one axis")
    rows, *others = shape
    if rows is None:
        return (rows, *others)
    if collective == "all_gather":
        return (rows * size, *others)
    if rows % size:
        raise ValueError(f"x has {rows} rows, which are not divisible among {size} ranks")
    return (rows // size if collective == "reduce_scatter" else rows, *others)
