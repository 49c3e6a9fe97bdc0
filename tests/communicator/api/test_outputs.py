"""Outputs that cannot be written are refused on their rank before the first message; the group stays usable."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import on_threads

torch = pytest.importorskip("torch")


def read_only(count):
    x = np.ones((2, count), "float32")[0]
    x.flags.writeable = False
    return x


def read_only_column(count):
    x = np.ones((count, 2), "float32")[:, 0]
    x.flags.writeable = False
    return x


OUTPUTS = {
    "expanded": (lambda count: torch.ones(1).expand(count), "share memory"),
    "expanded row": (lambda count: torch.ones(count // 2).expand(2, count // 2), "share memory"),
    "read-only": (read_only, "read-only"),
    "read-only column": (read_only_column, "read-only"),
    "broadcast array": (lambda count: np.broadcast_to(np.ones(1, "float32"), (count,)), "read-only"),
    "bytes": (lambda count: bytes(count), "read-only"),
}


def ones(count, like):
    if isinstance(like, bytes):
        return np.ones(count, "uint8")
    return np.ones(count, "float32") if isinstance(like, np.ndarray) else torch.ones(count)


CALLS = {
    "all_reduce in place": lambda c, make, b: c.all_reduce(make(4), async_op=b),
    "all_reduce": lambda c, make, b: c.all_reduce(ones(4, make(4)), out=make(4), async_op=b),
    "reduce": lambda c, make, b: c.reduce(ones(4, make(4)), c.rank, out=make(4), async_op=b),
    "broadcast": lambda c, make, b: c.broadcast(make(4), 0, async_op=b),
    "all_gather": lambda c, make, b: c.all_gather(ones(2, make(4)), out=make(4), async_op=b),
    "gather": lambda c, make, b: c.gather(ones(2, make(4)), c.rank, out=make(4), async_op=b),
    "scatter": lambda c, make, b: c.scatter(ones(8, make(4)), c.rank, out=make(4), async_op=b),
    "reduce_scatter": lambda c, make, b: c.reduce_scatter(ones(8, make(4)), out=make(4), async_op=b),
    "all_to_all": lambda c, make, b: c.all_to_all(ones(4, make(4)), out=make(4), async_op=b),
    "scan": lambda c, make, b: c.scan(ones(4, make(4)), out=make(4), async_op=b),
    "exscan": lambda c, make, b: c.exscan(ones(4, make(4)), out=make(4), async_op=b),
    "recv": lambda c, make, b: c.recv(make(4), 1 - c.rank, async_op=b),
    "recv from anyone": lambda c, make, b: c.recv(make(4), async_op=b),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("call", CALLS)
def test_outputs_that_cannot_be_written(call, output):
    make, why = OUTPUTS[output]

    def rank_main(comm):
        for background in (False, True):
            for _ in range(1 + comm.rank):  # rank 1 is mistaken once more
                with pytest.raises(ValueError, match=why):
                    CALLS[call](comm, make, background)
        assert (comm.all_reduce(np.ones(3, "float32")) == 2).all()

    on_threads(2, rank_main)


def test_outputs_without_elements_or_with_one():
    def rank_main(comm):
        for x in (torch.ones(1, 1).expand(0, 3), torch.ones(1).expand(1, 1), np.ones(0, "float32")):
            comm.all_reduce(x)
        return comm.all_reduce(torch.ones(2, 3).t()).tolist()

    assert on_threads(2, rank_main) == [[[2.0, 2.0]] * 3] * 2
