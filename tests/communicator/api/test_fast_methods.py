"""The methods that small calls take without a Python frame do what the methods behind them do."""

from __future__ import annotations

import inspect
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce import _engine
from tests.conftest import on_processes, on_threads

FAST = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


@pytest.mark.parametrize("name", FAST)
def test_it_looks_like_the_method(name):
    fast = getattr(ringreduce.Communicator, name)
    assert isinstance(fast, type(_engine.fast_method(name, print)))
    assert fast.__name__ == name and fast.__doc__
    assert list(inspect.signature(fast).parameters)[:2] == ["self", "x"]


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
