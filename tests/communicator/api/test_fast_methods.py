"""The methods that small calls take without a Python frame do what the methods behind them do."""

from __future__ import annotations

import inspect
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce import _engine
from ringreduce.schedules import COLLECTIVES
from tests.conftest import on_processes, on_threads


@pytest.mark.parametrize("name", COLLECTIVES)
def test_it_looks_like_the_method(name):
    fast = getattr(ringreduce.Communicator, name)
    assert isinstance(fast, type(_engine.fast_method(name, print)))
    assert fast.__name__ == name and fast.__doc__
    first = ["self"] if name == "barrier" else ["self", "x"]
    assert list(inspect.signature(fast).parameters)[: len(first)] == first


def test_arguments_by_place_and_by_name():
    def rank_main(comm):
        x, whole = np.full(1, comm.rank + 1.0), np.arange(2.0) + comm.rank
        own, both = np.empty(1), np.empty(2)
        return [
            comm.all_reduce(x.copy(), "max")[0],
            comm.all_reduce(x.copy(), op="min")[0],
            comm.all_reduce(x, out=own, algorithm="ring", timeout=5.0) is own and own[0],
            comm.all_reduce(x.copy(), out=None)[0],
            comm.reduce_scatter(whole, "prod", out=own)[0],
            comm.all_gather(x, out=both).tolist(),
            comm.broadcast(x.copy(), 1)[0],
            comm.broadcast(x.copy(), root=1)[0],
        ]

    got = on_processes(2, rank_main)
    assert got[0] == [2, 1, 3, 3, 0, [1, 2], 2, 2]
    assert got[1] == [2, 1, 3, 3, 2, [1, 2], 2, 2]


def every_way(rank, call):
    """Makes calls in all the ways that the fast path takes. `call` makes the method named first."""
    x, whole, root = np.full(2, rank + 1.0), np.arange(4.0) + rank, rank == 1
    own, both, rows = np.zeros(2), np.zeros(4), np.arange(6.0).reshape(3, 2) + rank
    block = rows[: 1 + rank]
    done = [
        call("reduce", x.copy(), 1),
        call("reduce", x.copy(), op="max", root=1),
        call("reduce", x, 1, "min", out=own),
        call("reduce", x, out=own),
        call("gather", x, 1),
        call("gather", x, root=1, out=both if root else None),
        call("gather", x, 1, out=both),
        call("gather", block, counts=[1, 2]),
        call("gather", block, 1, out=np.zeros((3, 2)), counts=(1, 2)),
        call("scatter", whole if root else None, 1, out=own),
        call("scatter", whole, 1, out=own, timeout=9.0),
        call("scatter", whole if root else None, out=None if root else own, root=1),
        call("scatter", x=whole if root else None, out=own, root=1),
        call("scatter", rows, 0, out=None if rank == 0 else np.zeros((2, 2)), counts=[1, 2]),
        call("all_to_all", whole),
        call("all_to_all", whole, out=both, algorithm="direct"),
        call(
            "all_to_all", rows, send_counts=[1, 2] if root else [2, 1], recv_counts=[1, 2] if root else [2, 1]
        ),
        call("all_gather", x),
        call("all_gather", block, counts=[1, 2]),
        call("all_gather", np.float64(rank).reshape(())),
        call("reduce_scatter", whole, "max"),
        call("reduce_scatter", rows, counts=[1, 2]),
        call("reduce_scatter", rows, counts=np.array([1, 2])),
        call("barrier"),
        call("barrier", timeout=9.0),
    ]
    return [None if one is None else (one.shape, one.tolist()) for one in done]


def test_the_methods_say_the_same():
    def rank_main(comm):
        def fast(name, *given, **named):
            return getattr(comm, name)(*given, **named)

        def method(name, *given, **named):
            return getattr(type(comm), name).__wrapped__(comm, *given, **named)

        return every_way(comm.rank, fast), every_way(comm.rank, method)

    for rank, (fast, method) in enumerate(on_processes(2, rank_main)):
        assert fast == method
        assert fast[0] == (None, ((2,), [3, 3]))[rank]
        assert fast[7] == (((3, 2), [[0, 1], [1, 2], [3, 4]]), None)[rank]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_usual_call_has_no_python_frame(name, monkeypatch):
    def method(*given, **named):
        raise AssertionError("the method was called")

    comm = ringreduce.local_group(1)[0]
    monkeypatch.setattr(type(comm), "_run", method)
    given = [] if name == "barrier" else [np.ones(3)]
    root = {"root": 0} if COLLECTIVES[name].rooted else {}
    uneven = {"counts": [3]} if COLLECTIVES[name].has_blocks else {}
    if name == "all_to_all":
        uneven = {"send_counts": [3], "recv_counts": [3]}
    for named in ({}, root, uneven, {"timeout": 9.0}):
        result = getattr(comm, name)(*given, **named)
        expected = [0, 0, 0] if name == "exscan" else [1, 1, 1]
        assert (result is None) if name == "barrier" else result.tolist() == expected


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda comm, x: comm.all_reduce(), "x"),
        (lambda comm, x: comm.all_reduce(x, "sum", x), "positional"),
        (lambda comm, x: comm.all_reduce(x, "sum", op="sum"), "op"),
        (lambda comm, x: comm.all_reduce(x, root=0), "root"),
        (lambda comm, x: comm.all_gather(x, "sum"), "positional"),
        (lambda comm, x: comm.broadcast(x, op="sum"), "op"),
        (lambda comm, x: comm.broadcast(x, out=x), "out"),
        (lambda comm, x: comm.all_reduce(x, x=x), "x"),
        (lambda comm, x: comm.barrier(x), "positional"),
        (lambda comm, x: comm.barrier(algorithm="ring"), "algorithm"),
        (lambda comm, x: comm.reduce(x, 0, "sum", x), "positional"),
        (lambda comm, x: comm.gather(x, 0, "sum"), "positional"),
        (lambda comm, x: comm.gather(x, op="sum"), "op"),
        (lambda comm, x: comm.all_to_all(x, counts=[2]), "counts"),
        (lambda comm, x: comm.all_reduce(x, counts=[2]), "counts"),
        (lambda comm, x: comm.gather(x, counts=2), "counts"),
    ],
)
def test_arguments_that_the_method_does_not_take(call, text):
    comm = ringreduce.local_group(1)[0]
    with pytest.raises(TypeError, match=text):
        call(comm, np.ones(2))
    assert comm.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_without_a_communicator():
    with pytest.raises(AttributeError):
        ringreduce.Communicator.all_reduce(object(), np.ones(2))  # type: ignore[arg-type]


def test_python_runs_on_while_a_small_call_waits():
    def rank_main(comm):
        counted = [0]
        over = threading.Event()

        def count():
            while not over.is_set():
                counted[0] += 1

        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.3)
            comm.all_reduce(np.ones(1))
            return True
        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        comm.all_reduce(np.ones(1))
        during = counted[0] - before
        over.set()
        thread.join()
        return during > 100

    assert on_processes(2, rank_main) == [True, True]


def test_tensors_that_only_torch_can_describe():
    torch = pytest.importorskip("torch")

    def rank_main(comm):
        parameter = torch.nn.Parameter(torch.ones(3))
        with torch.no_grad():
            comm.all_reduce(parameter)
        negated = torch._neg_view(torch.ones(2))
        column = torch.ones(2, 2)[:, 0]
        return (
            parameter.tolist(),
            comm.all_reduce(negated, out=torch.zeros(2)).tolist(),
            comm.all_reduce(column).tolist(),
            comm.all_reduce(torch.ones(2, dtype=torch.complex64).conj()).tolist(),
            comm.all_reduce(torch.ones(0)).tolist(),
        )

    expected = ([2, 2, 2], [-2, -2], [2, 2], [2, 2], [])
    assert on_threads(2, rank_main) == [expected, expected]
    comm = ringreduce.local_group(1)[0]
    with pytest.raises(TypeError, match="sparse"):
        comm.all_reduce(torch.eye(2).to_sparse())
