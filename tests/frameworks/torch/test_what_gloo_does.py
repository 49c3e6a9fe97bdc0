"""Whatever torch's Gloo does with tensors on CPUs, our backend does, too, with equal results.

Each operation of a ProcessGroupGloo is called for both, with two ranks that are threads, for every dtype, reduce op and
layout. What Gloo refuses is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.conftest import slowly

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no Gloo", allow_module_level=True)
backend = pytest.importorskip("ringreduce.backend")

WORLD, TIMEOUT = 2, timedelta(seconds=60)
OPS = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
OPS["PREMUL_SUM"] = dist._make_nccl_premul_sum(2.0)
DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
USUAL = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
LAYOUTS = ("empty", "a number", "transposed")
Tensors = list[Any]


class Call(NamedTuple):
    """One rank's call: its group, and what the tensors are to be."""

    group: Any
    rank: int
    dtype: Any
    op: str = "SUM"
    layout: str = ""

    def x(self, count: int, of: int = 0) -> Any:
        """The rank's tensor with the number `of`."""
        count = 0 if self.layout == "empty" else count
        values = (torch.arange(count) + 2 * self.rank + of) % 3 + 1
        x = values.to(self.dtype) if self.dtype.is_floating_point else _of_bytes(values, self.dtype)
        if self.layout == "a number":
            return x[:1].reshape(())
        return x.reshape(2, -1).t() if self.layout == "transposed" else x

    def like(self, options: Any) -> Any:
        """c10d's options, with the reduce op and the root."""
        for name, value in (("reduceOp", OPS[self.op]), ("rootRank", 1)):
            if hasattr(options, name):
                setattr(options, name, value)
        return options


def _of_bytes(values: Any, dtype: Any) -> Any:
    """A tensor of a dtype into which torch may convert nothing: small integers, or their bytes."""
    x = torch.empty(len(values), dtype=dtype)
    memory = torch.tensor([], dtype=torch.uint8).set_(x.untyped_storage())
    memory.zero_()
    memory.view(len(values), -1)[:, 0] = (
        values.to(torch.uint8) % 2 if dtype == torch.bool else values.to(torch.uint8)
    )
    return x


# --- the operations: each returns the tensors that it wrote --------------------------------------------------


def allreduce(call: Call, tensors: int = 1) -> Tensors:
    xs = [call.x(6, i) for i in range(tensors)]
    call.group.allreduce(xs, call.like(dist.AllreduceOptions())).wait()
    return xs[:1] if call.op == "AVG" else xs  # Gloo divides only the first


def allreduce_of_two(call: Call) -> Tensors:
    return allreduce(call, 2)


def allreduce_sparse(call: Call, tensors: int = 1) -> Tensors:
    xs = [torch.sparse_coo_tensor([[0, call.rank + i, 3]], call.x(3, i), (6,)) for i in range(tensors)]
    call.group.allreduce(xs, call.like(dist.AllreduceOptions())).wait()
    return [x.to_dense() for x in xs]


def allreduce_sparse_of_two(call: Call) -> Tensors:
    return allreduce_sparse(call, 2)


def allreduce_coalesced(call: Call) -> Tensors:
    xs = [call.x(6), call.x(4, 1)]
    call.group.allreduce_coalesced(xs, call.like(dist.AllreduceCoalescedOptions())).wait()
    return xs


def reduce(call: Call) -> Tensors:
    x = call.x(6)
    call.group.reduce([x], call.like(dist.ReduceOptions())).wait()
    return [x] if call.rank == 1 else []


def reduce_scatter(call: Call) -> Tensors:
    out = call.x(6)
    call.group.reduce_scatter(
        [out], [[call.x(6, 1), call.x(6, 2)]], call.like(dist.ReduceScatterOptions())
    ).wait()
    return [out]


def _reduce_scatter_base(call: Call) -> Tensors:
    out = call.x(6)
    call.group._reduce_scatter_base(out, call.x(12), call.like(dist.ReduceScatterOptions())).wait()
    return [out]


def reduce_scatter_tensor_coalesced(call: Call) -> Tensors:
    outs = [call.x(6), call.x(4)]
    ins = [call.x(12), call.x(8)]
    call.group.reduce_scatter_tensor_coalesced(outs, ins, call.like(dist.ReduceScatterOptions())).wait()
    return outs


def broadcast(call: Call, tensors: int = 1) -> Tensors:
    xs = [call.x(6, i) for i in range(tensors)]
    call.group.broadcast(xs, call.like(dist.BroadcastOptions())).wait()
    return xs


def broadcast_of_two(call: Call) -> Tensors:
    return broadcast(call, 2)


def allgather(call: Call, tensors: int = 1) -> Tensors:
    lists = [[call.x(6, 5) for _ in range(WORLD * tensors)] for _ in range(tensors)]
    call.group.allgather(lists, [call.x(6, i) for i in range(tensors)]).wait()
    return [tensor for one in lists for tensor in one]


def allgather_of_two(call: Call) -> Tensors:
    return allgather(call, 2)


def _allgather_base(call: Call) -> Tensors:
    out = call.x(12)
    call.group._allgather_base(out, call.x(6)).wait()
    return [out]


def allgather_coalesced(call: Call) -> Tensors:
    lists = [[call.x(6, 5), call.x(4, 5)] for _ in range(WORLD)]
    call.group.allgather_coalesced(lists, [call.x(6), call.x(4, 1)]).wait()
    return [tensor for one in lists for tensor in one]


def allgather_into_tensor_coalesced(call: Call) -> Tensors:
    outs = [call.x(12), call.x(8)]
    call.group.allgather_into_tensor_coalesced(outs, [call.x(6), call.x(4, 1)]).wait()
    return outs


def gather(call: Call) -> Tensors:
    outs = [call.x(6, 5) for _ in range(WORLD)] if call.rank == 1 else []
    call.group.gather([outs] if outs else [], [call.x(6)], call.like(dist.GatherOptions())).wait()
    return outs


def scatter(call: Call) -> Tensors:
    out = call.x(6)
    parts = [[call.x(6, 1), call.x(6, 2)]] if call.rank == 1 else []
    call.group.scatter([out], parts, call.like(dist.ScatterOptions())).wait()
    return [out]


def alltoall(call: Call) -> Tensors:
    outs = [call.x(2 * (call.rank + 1), 5) for _ in range(WORLD)]
    call.group.alltoall(outs, [call.x(2 * (to + 1), to) for to in range(WORLD)]).wait()
    return outs


def alltoall_base(call: Call) -> Tensors:
    out = call.x(6, 5)
    call.group.alltoall_base(out, call.x(6), [], []).wait()
    return [out]


def alltoall_base_uneven(call: Call) -> Tensors:
    out = call.x(2 * (call.rank + 1), 5)
    call.group.alltoall_base(out, call.x(3), [call.rank + 1] * 2, [1, 2]).wait()
    return [out]


def send_and_recv(call: Call) -> Tensors:
    x = call.x(6, 5)
    received = call.group.recv([x], 1 - call.rank, 3)
    call.group.send([call.x(6)], 1 - call.rank, 3).wait()
    received.wait()
    return [x]


def recv_anysource(call: Call) -> Tensors:
    x = call.x(6, 5)
    received = call.group.recv_anysource([x], 3)
    call.group.send([call.x(6)], 1 - call.rank, 3).wait()
    received.wait()
    return [x, torch.tensor(received._source_rank())]


def barrier(call: Call) -> Tensors:
    call.group.barrier().wait()
    return []


def monitored_barrier(call: Call) -> Tensors:
    call.group.monitored_barrier(TIMEOUT)
    return []


REDUCTIONS = (allreduce, allreduce_of_two, allreduce_sparse, allreduce_sparse_of_two, allreduce_coalesced, reduce,
              reduce_scatter, _reduce_scatter_base, reduce_scatter_tensor_coalesced)  # fmt: skip
MOVES = (broadcast, broadcast_of_two, allgather, allgather_of_two, _allgather_base, allgather_coalesced,
         allgather_into_tensor_coalesced, gather, scatter, alltoall, alltoall_base, alltoall_base_uneven, send_and_recv,
         recv_anysource, barrier, monitored_barrier)  # fmt: skip
# What those above call, too, and what moves no tensors.
ALSO = {"send", "recv"}
OTHERS = {
    "Device", "Options", "_Options", "_get_backend_name", "_get_sequence_number_for_group", "_pybind11_conduit_v1_",
    "_set_default_timeout", "_set_sequence_number_for_group", "abort", "allocate_tensor", "create_default_device",
    "create_device", "eager_connect_single_device", "memory_stats", "name", "rank", "resume", "set_timeout", "shrink",
    "setUsePgForSymmMemRendezvous", "shutdown", "size", "supports_tensor_alloc", "suspend", "_start_coalescing",
    "_end_coalescing",
}  # fmt: skip


# --- the comparison ------------------------------------------------------------------------------------------


def groups(name: str) -> Tensors:
    """All ranks' groups of Gloo or of ours."""
    store = dist.HashStore()
    kind = getattr(dist.ProcessGroup.BackendType, "GLOO" if name == "gloo" else "CUSTOM")

    def make(rank: int) -> Any:
        if name == "gloo":
            made = dist.ProcessGroupGloo(store, rank, WORLD, TIMEOUT)
        else:
            made = backend._load().create(store, rank, WORLD, TIMEOUT, [], None, True)
        group = dist.ProcessGroup(store, rank, WORLD)
        group._register_backend(torch.device("cpu"), kind, made)
        group._set_default_backend(kind)
        group._set_group_name(f"what_gloo_does/{name}/{rank}")
        return group

    with ThreadPoolExecutor(WORLD) as ranks:
        return list(ranks.map(make, range(WORLD)))


def results(ranks: ThreadPoolExecutor, made: Tensors, operation: Callable[[Call], Tensors], *how: Any) -> Any:
    """The tensors of all ranks, or the error of one."""
    running = [ranks.submit(operation, Call(made[rank], rank, *how)) for rank in range(WORLD)]
    wait(running)
    try:
        return [tensor for one in running for tensor in one.result()]
    except Exception as error:
        return error


def equal(x: Any, y: Any) -> bool:
    if x.dtype == torch.bool:  # Gloo adds bytes
        x, y = (one.view(torch.uint8) != 0 for one in (x, y))
    elif not x.dtype.is_floating_point:
        x, y = (bytes(one.contiguous().untyped_storage()) for one in (x, y))
        return x == y
    return torch.equal(x, y)


def ways(operation: Callable[[Call], Tensors], dtypes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    # One of Gloo's ranks cannot add sparse tensors of complex32, and the other waits for it until its timeout.
    is_sparse = operation in (allreduce_sparse, allreduce_sparse_of_two)
    dtypes = [one for one in dtypes if not (is_sparse and one == torch.complex32)]
    yield from product(dtypes, OPS if operation is allreduce else ["SUM"])
    yield from product([torch.float32, torch.int32], OPS if operation in REDUCTIONS[1:] else [])
    # Gloo writes past a number that it is to cut in two, and crashes where it is to add parts of those.
    cuts = operation in (alltoall_base, _reduce_scatter_base, reduce_scatter_tensor_coalesced)
    yield from product([torch.float32], ["SUM"], [one for one in LAYOUTS if not cuts or one == "transposed"])


@pytest.mark.parametrize("dtypes", [USUAL, *slowly(DTYPES)], ids=["usual", "all"])
@pytest.mark.parametrize("operation", [*REDUCTIONS, *MOVES], ids=lambda one: one.__name__)
def test_whatever_gloo_does_is_done_with_equal_results(operation, dtypes):
    gloo, ours, compared = groups("gloo"), groups("ringreduce"), 0
    different, refused = [], []
    with ThreadPoolExecutor(WORLD) as ranks:
        for how in ways(operation, dtypes):
            wanted = results(ranks, gloo, operation, *how)
            if isinstance(wanted, Exception):
                refused.append(wanted)
                gloo = groups("gloo")  # what the ranks had sent before is still on its way in the old one
                continue
            compared += 1
            found = results(ranks, ours, operation, *how)
            if (
                isinstance(found, Exception)
                or len(found) != len(wanted)
                or not all(map(equal, found, wanted))
            ):
                different.append(f"{how}: {found}, not {wanted}")
    assert not different, "\n".join(different)
    assert compared, refused


def names(cls: type) -> set[str]:
    return {name for name in dir(cls) if callable(getattr(cls, name)) and not name.startswith("__")}


def test_all_operations_of_gloos_class_are_compared():
    """What a newer torch adds to the class fails here."""
    compared = {one.__name__ for one in (*REDUCTIONS, *MOVES)}
    assert not names(dist.ProcessGroupGloo) - compared - ALSO - OTHERS


def test_ours_has_all_methods_of_gloos_class():
    """But for those that RINGREDUCE_AS gives to its objects."""
    given = {"Device", "_Options", "create_device", "create_default_device"}
    assert names(dist.ProcessGroupGloo) - names(backend._load().Backend) == given
