"""A call of a communicator as traced programs have it, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, get_args

from ringreduce._engine import reduce, values
from ringreduce.annotations import OpName
from ringreduce.communicator.communicator import Communicator
from ringreduce.errors import ClosedError
from ringreduce.schedules import COLLECTIVES

MESSAGES = ("send", "recv", "sendrecv")
CALLS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", *MESSAGES)
BY_ROWS = {name for name, one in COLLECTIVES.items() if one.has_blocks and not one.rooted}
OPS = get_args(OpName)
TRANSPOSED = {"broadcast": "all_reduce", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}

Length = TypeVar("Length", int, "int | None")
Kind: TypeAlias = tuple[tuple[int, ...], Any]  # shape and dtype


@dataclass(frozen=True)
class Call:
    """A call of a communicator without its array, as known when it is traced.

    ``result`` is the shape and dtype of what recv and sendrecv receive.
    """

    name: str
    weak_comm: Callable[[], Communicator | None]  # a weakref: a program that is traced keeps no communicator
    op: str = "sum"
    root: int = 0
    dest: int = 0
    source: int = 0
    tag: int = 0
    result: Kind | None = None

    @property
    def comm(self) -> Communicator:
        """The communicator. Raises ClosedError if it has been freed."""
        found = self.weak_comm()
        if found is None:
            raise ClosedError(
                f"the communicator of this {self.name} has been freed: keep it while programs use it"
            )
        return found

    @property
    def linear(self) -> bool:
        """Whether the result has derivatives."""
        return self.name not in ("send", "recv") and self.op in ("sum", "avg")

    def transposed(self, kind: Kind | None) -> Call:
        """Returns the call that computes the derivatives by x, of that shape and dtype, from those by the result.

        A front has to add that only the root's x counts in a broadcast, and that an average divides by the size.
        """
        if self.name == "sendrecv":
            return replace(self, dest=self.source, source=self.dest, result=kind)
        op = "sum" if self.name == "reduce_scatter" else self.op
        return replace(self, name=TRANSPOSED.get(self.name, self.name), op=op)


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
