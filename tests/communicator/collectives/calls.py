"""One call of any collective with known inputs, and what it must give, by NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ringreduce
from tests.conftest import unlike, whole_numbers

COLLECTIVES = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "scan",
    "exscan",
]
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
# What a collective takes from, and leaves on, each rank: its own block or all of them.
TAKES_ALL = {"all_reduce", "reduce_scatter", "broadcast", "reduce", "scatter", "all_to_all", "scan", "exscan"}
GIVES_ALL = {"all_reduce", "all_gather", "broadcast", "reduce", "gather", "all_to_all", "scan", "exscan"}
WHOLE = {"all_reduce", "broadcast", "reduce", "scan", "exscan"}


def identity(op: str, dtype: Any) -> Any:
    """The value that changes nothing."""
    if op in ("sum", "prod"):
        return int(op == "prod")
    if np.dtype(dtype).kind in "iu":
        return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
    return np.inf if op == "min" else -np.inf


def algorithms(collective: str) -> list[str]:
    return ["auto", *(entry.name for entry in ringreduce.algorithms(collective))]


@dataclass(frozen=True)
class Call:
    """`count`: elements of a block. `counts`: of every rank's block instead (all_to_all: [from][to])."""

    collective: str
    count: int = 0
    algorithm: str = "auto"
    root: int = 0
    op: str = "sum"
    mode: str = "in_place"  # or "out" or "new"
    shared_in: bool = False
    shared_out: bool = False
    offset: int = 0  # elements before the arrays in the memory that they are views of
    dtype: Any = np.float32
    counts: tuple[Any, ...] | None = None


def sent_by(call: Call, rank: int, world: int) -> list[int]:
    """Elements of each block that a rank gives (for whole buffers: of one block)."""
    if call.collective in WHOLE:
        return [call.count]
    if call.counts is None:
        return [call.count] * (world if call.collective in TAKES_ALL else 1)
    if call.collective == "all_to_all":
        return list(call.counts[rank])
    return list(call.counts) if call.collective in TAKES_ALL else [call.counts[rank]]


def values(call: Call, rank: int, world: int) -> Any:
    return whole_numbers(sum(sent_by(call, rank, world)), rank, call.dtype)


def blocks(call: Call, rank: int, world: int) -> list[Any]:
    ends = np.cumsum(sent_by(call, rank, world))
    return np.split(values(call, rank, world), ends[:-1])


def combined(op: str, parts: list[Any]) -> Any:
    stack = np.stack(parts)
    how = {"sum": np.sum, "avg": np.mean, "prod": np.prod, "min": np.min, "max": np.max}[op]
    return how(stack, axis=0).astype(parts[0].dtype)


def expected(call: Call, rank: int, world: int) -> Any:
    """What the rank ends with; None: nothing."""
    name = call.collective
    if name in ("reduce", "gather") and rank != call.root:
        return None
    if name == "broadcast":
        return values(call, call.root, world)
    if name == "scatter":
        return blocks(call, call.root, world)[rank]
    if name in ("all_gather", "gather"):
        return np.concatenate([values(call, r, world) for r in range(world)])
    if name == "all_to_all":
        return np.concatenate([blocks(call, r, world)[rank] for r in range(world)])
    if name == "exscan" and rank == 0:
        return np.full(call.count, identity(call.op, call.dtype), call.dtype)
    if name == "reduce_scatter":
        return combined(call.op, [blocks(call, r, world)[rank] for r in range(world)])
    ranks = {"scan": rank + 1, "exscan": rank}.get(name, world)
    return combined(call.op, [values(call, r, world) for r in range(ranks)])


def make(count: int, call: Call, shared: bool) -> Any:
    if shared:
        return ringreduce.empty(count + call.offset, call.dtype)[call.offset :]
    return np.zeros(count + call.offset, call.dtype)[call.offset :]


def buffers(call: Call, rank: int, world: int) -> tuple[Any, Any]:
    """The input, and where the output goes (None: the call makes it, or there is none)."""
    given, result = values(call, rank, world), expected(call, rank, world)
    if call.mode == "in_place" and call.collective in ("all_gather", "gather") and result is not None:
        out = make(len(result), call, call.shared_out)
        start = len(given) * rank if call.counts is None else sum(call.counts[:rank])
        x = out[start : start + len(given)]
        x[:] = given
        return x, out
    x = make(len(given), call, call.shared_in)
    x[:] = given
    if call.mode == "in_place" or call.collective == "broadcast":
        if call.collective in ("reduce_scatter", "scatter") and (
            call.collective != "scatter" or rank == call.root
        ):
            mine = sent_by(call, rank, world)
            start = sum(mine[:rank])
            return x, x[start : start + mine[rank]]
        if call.collective in WHOLE | {"all_to_all"}:
            return x, x
    if call.mode == "new" and call.collective != "scatter":
        return x, None
    if result is None:
        return x, None
    out = make(len(result), call, call.shared_out)
    out[:] = unlike(call.dtype, len(out))
    return x, out


def perform(comm: Any, call: Call, **more: Any) -> tuple[Any, Any, Any]:
    """Makes the call on one rank; its input, its output, and what the call returned."""
    x, out = buffers(call, comm.rank, comm.size)
    result = make_with(comm, call, x, out, **more)
    return None if call.collective == "scatter" and comm.rank != call.root else x, out, result


def make_with(comm: Any, call: Call, x: Any, out: Any, **more: Any) -> Any:
    """Makes the call on one rank with buffers that are there; what it returned."""
    arguments: dict[str, Any] = {"algorithm": call.algorithm, **more}
    if call.collective in ROOTED:
        arguments["root"] = call.root
    if ringreduce.schedules.COLLECTIVES[call.collective].reduces:
        arguments["op"] = call.op
    if call.collective != "broadcast" and out is not None:
        arguments["out"] = out
    if call.counts is not None and call.collective == "all_to_all":
        arguments["send_counts"] = call.counts[comm.rank]
        arguments["recv_counts"] = [row[comm.rank] for row in call.counts]
    elif call.counts is not None:
        arguments["counts"] = call.counts
    if call.collective == "scatter" and comm.rank != call.root:
        x = None
    return getattr(comm, call.collective)(x, **arguments)


def check(comm: Any, call: Call) -> None:
    """Makes the call, and compares."""
    x, out, result = perform(comm, call)
    verify(call, comm.rank, comm.size, x, out, result)


def verify(call: Call, rank: int, world: int, x: Any, out: Any, result: Any) -> None:
    want = expected(call, rank, world)
    if want is None:
        assert result is None, f"{call}: a result where there should be none"
    else:
        assert result is out or out is None or call.collective == "broadcast"
        # assert_array_equal is slow; its message is only needed when something is wrong.
        if not np.array_equal(result, want):
            np.testing.assert_array_equal(result, want, f"rank {rank} of {world}: {call}")
    if x is not None and out is not x and not np.shares_memory(x, result if result is not None else x[:0]):
        assert np.array_equal(x, values(call, rank, world)), (
            f"rank {rank} of {world}: {call} changed its input"
        )


def variants(call: Call) -> list[Call]:
    """The call in place and not."""
    modes = ["in_place"] if call.collective == "broadcast" else ["in_place", "out"]
    if call.counts is not None and call.collective == "all_to_all":
        modes = ["out", "new"]
    return [replace(call, mode=mode) for mode in modes]
