"""Checks of the operations' arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set, integers
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.request import Operation, Request

__all__ = ["EVERYONE", "Tensors", "chosen_groups", "chosen_op", "chosen_splits", "scaled_op", "submit"]

EVERYONE = global_process_set
Tensors = Sequence[Any]


def chosen_op(op: Any, average: bool | None, process_set: ProcessSet) -> Op:
    """Returns the op that a call asks for. Raises ValueError if the ranks cannot run it."""
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both")
        return Op.Average if average else Op.Sum
    if op is None:
        return Op.Average
    chosen: Op = op if type(op) is Op else Op(op)
    if chosen is Op.Adasum:
        if process_set is not EVERYONE:
            raise ValueError("op=Adasum needs the global process set")
        if job.size() & (job.size() - 1):
            raise ValueError(f"op=Adasum needs a power of two of ranks, not {job.size()}")
    return chosen


def chosen_groups(groups: Any, num_groups: int, kind: Any, what: str) -> tuple[Any, int]:
    """Returns the groups in which gradients travel, or None, and the number of groups for the others.

    Raises:
        ValueError: groups is neither lists of members of a kind, nor a number; or the number is negative.
    """
    if isinstance(groups, int):
        groups, num_groups = None, groups
    if groups is not None and not all(
        isinstance(group, list | tuple) and all(isinstance(one, kind) for one in group) for group in groups
    ):
        raise ValueError(f"groups must be a list of lists of {what}, or a number")
    if num_groups < 0:
        raise ValueError(f"num_groups must not be negative, not {num_groups}")
    return groups, num_groups


def scaled_op(op: Any, predivide: float, process_set: ProcessSet) -> dict[str, Any]:
    """Returns the op and the factors with which gradients are combined.

    Args:
        predivide: divides gradients before they are added, and the number of ranks over it afterwards.

    Raises:
        ValueError: op is not Average, and predivide not 1.
    """
    if predivide == 1.0:
        return {"op": Op(op)}
    if Op(op) is not Op.Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    after = predivide / process_set.size()
    return {"op": Op.Sum, "prescale_factor": 1 / predivide, "postscale_factor": after}


def submit(operation: Operation, name: str | None, process_set: ProcessSet, blocking: bool) -> Request:
    return process_set.driver().submit_named(operation, name, blocking)


def chosen_splits(shape: Sequence[int], splits: Any, ranks: int) -> list[int]:
    """Returns the number of rows for each rank that an all-to-all asks for. Raises ValueError if they do not fit."""
    rows = shape[0] if shape else 0
    if splits is None:
        if rows % ranks or not shape:
            raise ValueError(
                f"the {rows} rows of the tensor do not divide evenly among {ranks} ranks: give splits"
            )
        return [rows // ranks] * ranks
    counts = integers(splits, "splits")
    if len(counts) != ranks or min(counts) < 0 or sum(counts) > rows:
        raise ValueError(f"splits must be {ranks} numbers of rows, {rows} together at most, not {counts}")
    return counts
