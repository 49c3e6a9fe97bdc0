"""Wrong arguments, and models that differ between ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ringreduce
from tests.conftest import on_threads

SGD = torch.optim.SGD
WRONG = [
    ({"staleness": -1}, ValueError, "staleness"),
    ({"staleness": 1.5}, TypeError, "staleness"),
    ({"servers": 2}, ValueError, "servers"),
    ({"servers": 0}, ValueError, "servers"),
    ({"servers": 1, "copies": True}, ValueError, "copies"),
    ({"overlap": True}, ValueError, "overlap needs a staleness"),
    ({"delay_compensation": 0.1}, ValueError, "delay_compensation needs a staleness"),
    ({"delay_compensation": -1.0, "staleness": 2}, ValueError, "delay_compensation"),
    ({"compensation_decay": 0.9, "staleness": 2}, ValueError, "compensation_decay"),
    ({"optimizer": torch.optim.LBFGS}, ValueError, "LBFGS"),
    ({"optimizer": SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, TypeError, "optimizer"),
    ({"lr": -1.0}, ValueError, "learning rate"),
]


def _raises(comm, error, text, make, **arguments):
    with pytest.raises(error, match=text) as found:
        ringreduce.ParameterServer(comm, make(comm.rank), **{"optimizer": SGD, **arguments})
    return str(found.value)


@pytest.mark.parametrize(("arguments", "error", "text"), WRONG)
def test_wrong_arguments(arguments, error, text):
    on_threads(2, lambda comm: _raises(comm, error, text, lambda _: nn.Linear(2, 2), **arguments))


def test_a_worker_alone_has_no_server():
    on_threads(1, lambda comm: _raises(comm, ValueError, "at least 2 ranks", lambda _: nn.Linear(2, 2)))


def _mixed():
    return nn.ModuleDict({"words": nn.Embedding(5, 2, sparse=True), "rest": nn.Linear(2, 2)})


@pytest.mark.parametrize(
    ("make", "optimizer", "text"),
    [
        (_mixed, torch.optim.Adam, "Adam does not take the sparse gradient of parameter 'words.weight'"),
        (
            _mixed,
            torch.optim.SparseAdam,
            "SparseAdam does not take the dense gradient of parameter 'rest.weight'",
        ),
        (nn.ReLU, SGD, "no parameter"),
        (lambda: nn.Linear(2, 2).to(torch.complex64), SGD, "'weight' has dtype complex64"),
        (lambda: nn.LazyLinear(2), SGD, "no shape yet"),
    ],
)
def test_models_that_are_not_served(make, optimizer, text):
    on_threads(2, lambda comm: _raises(comm, ValueError, text, lambda _: make(), optimizer=optimizer))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: nn.Linear(3, 4), r"ranks 0, 2: parameter 'weight': float32\[5, 3\]; rank 1: .*\[4, 3\]"),
        (lambda: nn.Linear(3, 5).double(), r"ranks 0, 2: parameter 'weight': float32.*; rank 1: .*float64"),
        (lambda: nn.Sequential(nn.Linear(3, 5)), r"rank 1: parameter '0.weight'"),
    ],
)
def test_models_that_differ_name_the_rank_and_the_parameter(other, text):
    def make(rank):
        return other() if rank == 1 else nn.Linear(3, 5)

    assert len(set(on_threads(3, lambda comm: _raises(comm, ringreduce.Error, text, make, lr=0.1)))) == 1


def test_arguments_that_differ():
    def differ(comm):
        return _raises(
            comm, ringreduce.Error, "staleness", lambda _: nn.Linear(2, 2), staleness=comm.rank, lr=0.1
        )

    on_threads(2, differ)


def test_groups_must_hold_all_parameters():
    def lacking(comm):
        model = nn.Linear(2, 2)
        with pytest.raises(ValueError, match="lack parameter 'bias'"):
            ringreduce.ParameterServer(comm, model, SGD, [{"params": [model.weight]}], lr=0.1)

    on_threads(2, lacking)


def test_calls_that_do_not_fit():
    def misuse(comm):
        model = nn.Linear(2, 2)
        server = ringreduce.ParameterServer(comm, model, SGD, lr=0.1, servers=1)
        if comm.rank == 2:
            with pytest.raises(ringreduce.Error, match="must call serve"):
                server.step()
            server.serve()
            return
        with pytest.raises(ringreduce.Error, match="is a worker"):
            server.serve()
        with pytest.raises(ValueError, match="groups of"):
            server.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
        with pytest.raises(TypeError, match="cannot be copied"):
            server.__getstate__()
        for _ in server.batches(4):
            model(torch.ones(1, 2)).sum().backward()
            server.step()
            with pytest.raises(ringreduce.Error, match="once for each batch"):
                server.step()
        server.close()
        server.close()
        with pytest.raises(ringreduce.ClosedError):
            server.step()

    on_threads(3, misuse)


def test_a_sparse_gradient_of_something_else():
    def surprise(comm):
        model = nn.Linear(2, 2)
        with ringreduce.ParameterServer(comm, model, SGD, lr=0.1) as server:
            model.weight.grad = torch.eye(2).to_sparse()
            with pytest.raises(TypeError, match="'weight' is sparse"):
                server.step()
            model.weight.grad = None
            server.step()  # nothing was sent before

    on_threads(2, surprise)


class Moody(SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] == 0.125:
            raise ArithmeticError("not today")
        return super().step(closure)


def test_an_optimizer_that_fails_on_a_server():
    def fail(comm):
        model = nn.Linear(2, 2)
        with ringreduce.ParameterServer(comm, model, Moody, lr=0.25, staleness=None) as server:
            model(torch.ones(1, 2)).sum().backward()
            server.param_groups[0]["lr"] = 0.125
            with pytest.raises(
                ringreduce.Error, match=r"optimizer of shard . failed: ArithmeticError: not today"
            ):
                server.step()

    on_threads(2, fail)
