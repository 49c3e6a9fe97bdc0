"""What tests/gpu/test_hosts.py runs: one rank, on the host that RINGREDUCE_HOST names.

programs_of_hosts RANK SIZE PLACE TRANSPORT WHAT
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial

import numpy as np

import ringreduce
from tests.communicator.collectives import test_custom as custom
from tests.gpu import nccl_api, served
from tests.gpu.gpu_arrays import GpuArray, integers, library, new_stream, wait_for

LARGE = 100_000  # elements


def check(comm, array, wanted, what):
    got = array.get(comm)
    assert (got == np.asarray(wanted, got.dtype)).all(), (what, got, wanted)


def reductions(comm, count, dtype, op):
    given = [integers(rank, count, dtype) for rank in range(comm.size)]
    whole = {"sum": sum(given), "max": np.maximum.reduce(given), "avg": sum(given) / comm.size}[op]
    what = ("all_reduce", count, dtype, op)
    x = GpuArray(given[comm.rank])
    out = comm.all_reduce(x, op, out=GpuArray(np.zeros(count, dtype)))
    check(comm, out, whole, what)
    check(comm, x, given[comm.rank], what)
    comm.all_reduce(x, op)
    check(comm, x, whole, what)
    each = count // comm.size
    given = [part[: each * comm.size] for part in given]
    own = whole[each * comm.rank : each * (comm.rank + 1)]
    x = GpuArray(given[comm.rank])
    check(comm, comm.reduce_scatter(x, op, out=GpuArray(np.zeros(each, dtype))), own, what)
    check(comm, x, given[comm.rank], what)


def movements(comm, count):
    given = [integers(rank, count) for rank in range(comm.size)]
    everything = np.concatenate(given)
    out = comm.all_gather(GpuArray(given[comm.rank]), out=GpuArray(np.zeros(count * comm.size, "float32")))
    check(comm, out, everything, "all_gather")
    for root in range(comm.size):
        x = GpuArray(given[comm.rank])
        comm.broadcast(x, root)
        check(comm, x, given[root], "broadcast")
        x = GpuArray(given[comm.rank])
        comm.reduce(x, root)
        check(comm, x, sum(given) if comm.rank == root else given[comm.rank], "reduce")


def factors(comm):
    x = GpuArray(np.full(LARGE, comm.rank + 1, "float32"))
    comm.all_reduce(x, factor=0.5)
    check(comm, x, np.full(LARGE, comm.size * (comm.size + 1) / 4), "factor")


def bits(comm, **how):
    """The same on all ranks."""
    x = GpuArray(np.random.default_rng(comm.rank).standard_normal(LARGE).astype("float32"))
    comm.all_reduce(x, **how)
    got = x.get(comm)
    everybodys = comm.all_gather(got.view("uint32")).reshape(comm.size, -1)
    assert (everybodys == everybodys[0]).all()
    return got


def collectives(comm):
    for count in (1, 37 * comm.size, LARGE, LARGE + 7):
        for dtype, op in (("float32", "sum"), ("int32", "sum"), ("float64", "max")):
            reductions(comm, count, dtype, op)
        movements(comm, count)
    reductions(comm, 720 * comm.size, "float64", "sum")
    factors(comm)
    average = bits(comm, op="avg")
    wanted = np.mean(
        [np.random.default_rng(rank).standard_normal(LARGE) for rank in range(comm.size)], axis=0
    )
    assert np.allclose(average, wanted, atol=1e-5)
    bits(comm)
    bits(comm, wire="bf16")
    on = served.Rank(comm, True)
    for name, operation in served.OPERATIONS.items():
        if "nccl" in name or "graphs" in name or "send" in name:
            continue
        operation(on)
    for count in (0, 3, LARGE):
        x = GpuArray(integers(comm.rank, count))
        comm.all_reduce(x, algorithm=custom.everybody)
        check(comm, x, sum(integers(rank, count) for rank in range(comm.size)), "a function")


def large(comm):
    """Many slices of all kinds, and one of a call whose blocks only two ranks know."""
    count = 5_000_000
    reductions(comm, count, "float32", "sum")
    movements(comm, count // 4)
    sizes = [[200_000 * (to + 1) + rank for to in range(comm.size)] for rank in range(comm.size)]
    came = [sizes[rank][comm.rank] for rank in range(comm.size)]
    given = [integers(rank, sum(sizes[rank])) for rank in range(comm.size)]
    out = GpuArray(np.zeros(sum(came), "float32"))
    for _ in range(3):
        comm.all_to_all(GpuArray(given[comm.rank]), out=out, send_counts=sizes[comm.rank], recv_counts=came)
    blocks = [np.split(given[r], np.cumsum(sizes[r])[:-1])[comm.rank] for r in range(comm.size)]
    check(comm, out, np.concatenate(blocks), "uneven all_to_all")
    counts = [700_000 * (rank + 1) for rank in range(comm.size)]
    out = GpuArray(np.zeros(sum(counts), "float32"))
    comm.all_gather(GpuArray(integers(comm.rank, counts[comm.rank])), out=out, counts=counts)
    check(comm, out, np.concatenate([integers(r, n) for r, n in enumerate(counts)]), "uneven all_gather")


def streams(comm):
    """A rank's calls return, although another rank has not come; work on the stream comes after them."""
    stream, other = (new_stream().handle.value for _ in range(2))
    meeting = comm.split(0)
    x = GpuArray(np.full(LARGE, comm.rank + 1.0, "float32"))
    comm.all_reduce(GpuArray(np.ones(LARGE, "float32"))).get(comm)
    if comm.rank == 0:
        for on in (stream, other, stream):
            comm.all_reduce(x, stream=on)
        work = comm.all_reduce(x, async_op=True, stream=stream)
        assert not work.done()
        meeting.barrier()
    else:
        meeting.barrier()
        for on in (stream, stream, other):
            comm.all_reduce(x, stream=on)
        work = comm.all_reduce(x, async_op=True, stream=other)
    work.wait()
    check(comm, x, np.full(LARGE, comm.size**3 * comm.size * (comm.size + 1) / 2), "calls in a row")


def reproducible(comm):
    x = np.random.default_rng(comm.rank).standard_normal(LARGE).astype("float32")
    on_gpu = GpuArray(x)
    comm.all_reduce(on_gpu)
    check(comm, on_gpu, comm.all_reduce(x), "on a reproducible communicator")


def failing(comm, call):
    """The error that ends the group, when this call or a later one finds it."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            call()
            wait_for(comm.device_stream)
        except ringreduce.Error as error:
            return error
    raise AssertionError("the group goes on")


def mismatch(comm):
    for count in (10, LARGE):
        with comm.split(0) as group:
            x = GpuArray(np.ones(count, "float32"))
            group.all_reduce(x)
            op = "max" if group.rank == group.size - 1 else "sum"
            error = failing(group, partial(group.all_reduce, x, op))
            assert isinstance(error, ringreduce.MismatchError), error
            assert "max" in str(error) and "sum" in str(error), error


def killed(comm):
    last = comm.size - 1
    for count in (10, LARGE):
        comm.all_reduce(GpuArray(np.ones(count, "float32"))).get(comm)
    comm.barrier()
    if comm.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    x = GpuArray(np.ones(LARGE, "float32"))
    error = failing(comm, partial(comm.all_reduce, x))
    assert isinstance(error, ringreduce.PeerLost) and error.rank == last, error
    with comm.shrink() as left:
        x = GpuArray(np.ones(LARGE, "float32"))
        left.all_reduce(x)
        check(left, x, np.full(LARGE, left.size), "without it")


def late(comm):
    """Rank 0 waits for the last one, which makes no call."""
    comm.all_reduce(GpuArray(np.ones(LARGE, "float32"))).get(comm)
    x = GpuArray(np.ones(LARGE, "float32"))
    how = {"transport": "shm+tcp", "timeout": 1.0}
    with ringreduce.init(comm.rank, comm.size, comm.all_gather_object, **how) as group:
        group.all_reduce(x)
        wait_for(group.device_stream)
        comm.barrier()
        if comm.rank < comm.size - 1:
            error = failing(group, partial(group.all_reduce, x))
            assert isinstance(error, ringreduce.TimeoutError) and error.rank == comm.size - 1, error
        comm.barrier()


def captured(comm):
    stream = new_stream()
    x = GpuArray(np.ones(LARGE, "float32"))
    comm.all_reduce(x)
    wait_for(comm.device_stream)
    try:
        with library().captured(stream):
            comm.all_reduce(x, stream=stream.handle.value)
    except ValueError as error:
        assert "go through the CPU, which a graph cannot repeat" in str(error), error
    else:
        raise AssertionError("captured")
    comm.all_reduce(x)
    check(comm, x, np.full(LARGE, comm.size**2), "after that")


def refused_by_fabrics(comm):
    for _ in range(2):
        try:
            comm.all_reduce(GpuArray(np.ones(LARGE, "float32")))
        except ValueError as error:
            assert "transport shm+ofi carries no arrays in GPU memory, and NCCL cannot" in str(error), error
        else:
            raise AssertionError("carried")
    assert (comm.all_reduce(np.ones(10)) == comm.size).all()


def leaves(comm):
    """While others are in a call."""
    x = GpuArray(np.ones(LARGE, "float32"))
    comm.all_reduce(x)
    wait_for(comm.device_stream)
    comm.barrier()
    if comm.rank == 3:
        return
    error = failing(comm, partial(comm.all_reduce, x))
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 3, error


def messages(comm):
    on = served.Rank(comm, True)
    served.messages(on)
    try:
        served.untagged_messages(on)
    except ValueError as error:
        assert "messages between GPUs need" in str(error), error
    else:
        raise AssertionError("carried by nothing")


def served_operations(comm):
    """What tests/gpu/served.py has of the table "What is served"."""
    found = {}
    for name, operation in served.OPERATIONS.items():
        with comm.split(0) as group:
            group.prepare(0)
            try:
                operation(served.Rank(group, True))
                found[name] = "yes"
            except (ValueError, ringreduce.Error) as error:
                found[name] = str(error)
    print(json.dumps(found))


def stand_in(comm):
    """The library that stands in for NCCL, where there is no other one."""
    made = nccl_api.unique_id() if comm.rank == 0 else None
    [id, *_] = comm.all_gather_object(made and bytes(made.internal))
    rank = nccl_api.Rank(comm.size, comm.rank, nccl_api.UniqueId.from_buffer_copy(id), device=0)
    x = rank.array(np.full(LARGE, comm.rank + 1))
    rank.all_reduce(x)
    total = comm.size * (comm.size + 1) / 2
    assert rank.values(x) == [total] * LARGE
    try:
        with library().captured(rank.stream):
            rank.all_reduce(x)
        raise AssertionError("captured")
    except nccl_api.Failed as error:
        assert error.result == nccl_api.INVALID_USAGE, error
        assert f"rank {comm.rank} of {comm.size}: stream is being captured" in str(error), error
    came = rank.array(np.zeros(LARGE))
    rank.message("ncclSend", x, (comm.rank + 1) % comm.size)  # through host memory
    rank.message("ncclRecv", came, (comm.rank - 1) % comm.size)
    assert rank.values(came) == [total] * LARGE
    comm.barrier()
    op = nccl_api.PROD if comm.rank == 1 else nccl_api.SUM
    rank.all_reduce(x, op=op)
    assert rank.wait_for_error() == nccl_api.INVALID_USAGE
    assert "prod" in nccl_api.last_error(), nccl_api.last_error()
    comm.barrier()
    rank.abort()


def refused(comm):
    try:
        comm.all_reduce(GpuArray(np.ones(10, "float32")))
    except Exception as error:
        print(error)


def main() -> None:
    rank, size, place, transport, what = sys.argv[1:]
    library()
    options = {"reproducible": True} if what == "reproducible" else {}
    with ringreduce.init(int(rank), int(size), place, transport=transport, timeout=30.0, **options) as comm:
        globals()[what](comm)


if __name__ == "__main__":
    main()
