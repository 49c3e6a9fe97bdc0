"""Outputs that cannot be written are refused before the first message, and the group stays usable."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.groups import on_process_group

WORLD = 2


def expanded(*shape: int) -> torch.Tensor:
    return torch.ones(1).expand(shape)


def freed(*shape: int) -> torch.Tensor:
    x = torch.ones(shape)
    x.untyped_storage().resize_(0)
    return x


def _coalesced(bad):
    with dist._coalescing_manager():
        dist.all_reduce(bad)


CALLS = {
    "all_reduce": lambda bad: dist.all_reduce(bad),
    "asynchronous all_reduce": lambda bad: dist.all_reduce(bad, async_op=True).wait(),
    "premul": lambda bad: dist.all_reduce(bad, dist._make_nccl_premul_sum(2.0)),
    "coalesced all_reduce": _coalesced,
    "all_reduce of several": lambda bad: dist.all_reduce_coalesced([torch.ones(4), bad]),
    "broadcast": lambda bad: dist.broadcast(bad, 0),
    "all_gather": lambda bad: dist.all_gather([torch.ones(4), bad], torch.ones(4)),
    "all_gather_into_tensor": lambda bad: dist.all_gather_into_tensor(bad, torch.ones(2)),
    "all_gather of lists": lambda bad: dist.all_gather_coalesced([[torch.ones(4)], [bad]], [torch.ones(4)]),
    "reduce_scatter": lambda bad: dist.reduce_scatter(bad, [torch.ones(4), torch.ones(4)]),
    "reduce_scatter_tensor": lambda bad: dist.reduce_scatter_tensor(bad, torch.ones(8)),
    "scatter": lambda bad: dist.scatter(bad, [torch.ones(4)] * 2 if dist.get_rank() == 0 else None, 0),
    "all_to_all": lambda bad: dist.all_to_all([torch.ones(4), bad], [torch.ones(4), torch.ones(4)]),
    "all_to_all_single": lambda bad: dist.all_to_all_single(bad, torch.ones(4)),
    "recv": lambda bad: dist.recv(bad, 1 - dist.get_rank()),
    "irecv": lambda bad: dist.irecv(bad, 1 - dist.get_rank()),
    "batch": lambda bad: dist.batch_isend_irecv([dist.P2POp(dist.irecv, bad, 1 - dist.get_rank())]),
}
OF_ROOTS = {
    "reduce": lambda bad: dist.reduce(bad, 1),
    "gather": lambda bad: dist.gather(torch.ones(4), [torch.ones(4), bad], 1),
}


def _refused(by: str) -> dict[str, str]:
    """What each call raises on the ranks that make it; afterwards all ranks make a call that must succeed."""
    rank, found = dist.get_rank(), {}
    calls = {**CALLS, **OF_ROOTS} if rank == 1 else CALLS
    for kind, make in {"expanded": expanded, "freed": freed}.items():
        for name, call in calls.items():
            if by == "one" and rank == 0:
                continue
            try:
                call(make(4))
                found[f"{name}, {kind}"] = "nothing"
            except (RuntimeError, ValueError) as error:
                found[f"{name}, {kind}"] = str(error)
        x = torch.full((3,), 1.0 + rank)
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 3
    return found


@pytest.mark.parametrize("by", ["all", "one"])
def test_outputs_that_cannot_be_written(by):
    for rank, found in enumerate(on_process_group(WORLD, _refused, by)):
        assert len(found) == (0 if by == "one" and rank == 0 else 2 * len(CALLS) + 2 * len(OF_ROOTS) * rank)
        for name, text in found.items():
            assert ("share memory" if "expanded" in name else "has been resized") in text, (name, text)


def _gradient_of_a_sum():
    w = torch.ones(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(w.sum(), w)
    with pytest.raises(RuntimeError, match=r"clone\(\) it before the call"):
        dist.all_reduce(gradient)
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient.tolist()


def test_the_gradient_of_a_sum():
    assert on_process_group(WORLD, _gradient_of_a_sum) == [[2.0] * 4] * WORLD


def _written():
    """Outputs that overlap each other, are empty, or not contiguous can be written."""
    rank = dist.get_rank()
    x = torch.zeros(2)
    dist.all_gather([x, x], torch.full((2,), 1.0 + rank))  # the last one stays
    several = x.tolist()
    dist.all_reduce(torch.ones(1, 1).expand(0, 3))
    dist.all_reduce(torch.empty(0))
    columns = torch.ones(2, 3).t()
    dist.all_reduce(columns)
    dist.all_reduce(torch.ones(1).expand(1, 1))
    return several, columns.tolist()


def test_outputs_that_can_be_written():
    assert on_process_group(WORLD, _written) == [([2.0, 2.0], [[2.0, 2.0]] * 3)] * WORLD


# --- sparse tensors ----------------------------------------------------------------------------------------------


def _sparse(values, size=(6,)):
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]]), values, size)


def _sparse_tensors():
    rank, found = dist.get_rank(), []
    cases = {
        "size": (lambda: _sparse(torch.ones(3), (6 + rank,)), dist.ReduceOp.SUM),
        "dense part": (lambda: _sparse(torch.ones(3, 2 + rank), (6, 2 + rank)), dist.ReduceOp.SUM),
        "dtype": (lambda: _sparse(torch.ones(3).to(torch.float8_e5m2)), dist.ReduceOp.SUM),
        "op": (lambda: _sparse(torch.ones(3)), dist.ReduceOp.MAX),
        "bool": (lambda: _sparse(torch.ones(3, dtype=torch.bool)), dist.ReduceOp.AVG),
    }
    for make, op in cases.values():
        for background in (False, True):
            with pytest.raises(RuntimeError) as raised:
                work = dist.all_reduce(make(), op, async_op=background)
                if background:
                    work.wait()
            found.append(str(raised.value))
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == WORLD
    status = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert "SUCCESS" in str(status.get_error()) if hasattr(status, "get_error") else True
    return found


def test_sparse_tensors_that_cannot_be_added():
    for found in on_process_group(WORLD, _sparse_tensors):
        assert all("rank 1's differs from rank 0's" in text for text in found[:4]), found
        assert "sum and avg only" in found[6]


def _sparse_averages():
    found = []
    for dtype in (torch.int64, torch.int32, torch.int8, torch.float32, torch.float16):
        sparse = _sparse(torch.tensor([-4 - dist.get_rank(), 1, 2]).to(dtype))
        dense = sparse.to_dense()
        for x in (sparse, dense):
            dist.all_reduce(x, dist.ReduceOp.AVG)
        found.append(torch.equal(sparse.to_dense(), dense))
    return found


def test_sparse_averages_are_those_of_dense_tensors():
    assert on_process_group(WORLD, _sparse_averages) == [[True] * 5] * WORLD
