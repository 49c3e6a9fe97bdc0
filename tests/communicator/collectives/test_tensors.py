"""torch tensors."""

from __future__ import annotations

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_processes, on_threads

torch = pytest.importorskip("torch")


FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_dtypes(dtype):
    def rank_main(comm):
        x = torch.ones(100).to(getattr(torch, dtype))
        assert comm.all_reduce(x, "max") is x and (x.float() == 1).all()
        assert comm.all_gather(x).dtype is x.dtype
        comm.all_reduce(x)
        assert (x.float() == (1 if dtype == "bool" else 2)).all()

    on_threads(2, rank_main)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype):
    def rank_main(comm):
        x = torch.full((50,), 1 + 2j * comm.rank, dtype=getattr(torch, dtype))
        assert comm.all_reduce(x.clone()).tolist() == [2 + 2j] * 50
        assert comm.all_reduce(x.clone(), "avg").tolist() == [1 + 1j] * 50
        assert comm.all_gather(x).dtype is x.dtype

    on_threads(2, rank_main)


def test_views_that_conjugate_or_negate():
    """Torch only notes that such views are to be conjugated, or negated, when they are read."""

    def rank_main(comm):
        x = torch.full((50,), 1 + 2j, dtype=torch.complex64)
        view = x.conj()
        assert comm.all_gather(view).tolist() == [1 - 2j] * 100
        assert (
            comm.all_reduce(view) is view and view.tolist() == [2 - 4j] * 50 and x.tolist() == [2 + 4j] * 50
        )
        one = x.conj().imag[:1]
        assert comm.all_reduce(one) is one and one.tolist() == [-8] and x.tolist()[:2] == [2 + 8j, 2 + 4j]
        received = torch.zeros(50, dtype=torch.complex64)
        comm.send(x.conj(), 1) if comm.rank == 0 else comm.recv(received.conj(), 0)
        assert comm.rank == 0 or received[1] == 2 + 4j

    on_threads(2, rank_main)


def test_layouts_and_gradients():
    def rank_main(comm):
        x = torch.ones(6, 8)[:, ::2]
        assert comm.all_reduce(x) is x and (x == 2).all()
        out = torch.zeros(4, 6).t()
        assert comm.all_reduce(x, out=out) is out and (out == 4).all() and (x == 2).all()
        weight = torch.nn.Parameter(torch.ones(3, 4))
        weight.sum().backward()
        comm.all_reduce(weight.grad)
        assert (weight.grad == 2).all()
        comm.broadcast(weight)
        comm.all_reduce(weight)
        assert (weight == 2).all() and weight.requires_grad
        turned = torch.nn.Parameter(torch.ones(3, 4).t())
        comm.all_reduce(turned)
        assert (turned == 2).all()
        scalar = torch.tensor(2.0)
        assert comm.all_reduce(scalar).item() == 4
        assert comm.all_gather(torch.zeros(0, 3)).shape == (0, 3)
        received = torch.zeros(3, 4).t()
        comm.send(turned, 1) if comm.rank == 0 else comm.recv(received, 0)
        assert comm.rank == 0 or (received == 2).all()

    on_threads(2, rank_main)


def test_what_is_refused():
    def rank_main(comm):
        with pytest.raises(TypeError, match="dtype"):
            comm.all_reduce(torch.zeros(3).to(torch.float8_e4m3fnuz))
        with pytest.raises(ValueError, match="device"):
            comm.all_reduce(torch.zeros(3, device="meta"))
        with pytest.raises((TypeError, ValueError)):
            comm.all_reduce(torch.zeros(3, 3).to_sparse())
        with pytest.raises(ValueError, match="dtype"):
            comm.all_reduce(torch.zeros(3), out=torch.zeros(3, dtype=torch.float64))
        assert (comm.all_reduce(torch.ones(3)) == 2).all()

    on_threads(2, rank_main)


def test_tensors_in_shared_memory():
    def rank_main(comm):
        x = ringreduce.empty((100, 300), torch.bfloat16)
        assert x.dtype is torch.bfloat16 and x.shape == (100, 300)
        y = ringreduce.empty(50_000, torch.float32)
        y.fill_(comm.rank)
        comm.all_reduce(y[1000:])
        assert (y[1000:] == 1).all() and (y[:1000] == comm.rank).all()

    on_processes(2, rank_main)


def test_tensors_and_arrays_meet():
    def rank_main(comm):
        x = torch.ones(50) if comm.rank else np.ones(50, "float32")
        assert (comm.all_reduce(x) == 2).all()
        assert (comm.all_reduce(torch.ones(50), out=np.zeros(50, "float32")) == 2).all()

    on_threads(2, rank_main)
