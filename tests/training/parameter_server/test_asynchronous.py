"""Bounded and unbounded staleness, delay compensation, and sparse rows."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from torch import nn

import ringreduce
from tests.conftest import on_processes, over_tcp, slowly
from tests.training.parameter_server.models import backward, counting, network, same, values

# --- the bound -------------------------------------------------------------------------------------------------


def _count(comm, steps, staleness, overlap=False, servers=None):
    """Counts each worker's steps in its row. Returns what the worker saw at the begin of each clock."""
    model, server = counting(comm, comm.size, staleness, overlap=overlap, servers=servers)
    if comm.rank not in server.workers:
        return server.serve()
    chance, seen = random.Random(comm.rank), []
    for step in range(steps):
        seen.append((model.least(), model.most()))
        time.sleep(chance.choice([0, 0, 0.002, 0.01]) * (1 + 2 * (comm.rank == 1)))
        model.count(comm.rank)
        server.step()
        assert server.clock == step + 1
    server.close()
    return seen


@pytest.mark.parametrize("staleness", [*slowly(1, 0, 3)])
@pytest.mark.parametrize(("on_ranks", "ranks"), [(on_processes, 3), (over_tcp, 4)])
def test_every_read_has_the_gradients_that_the_bound_promises(on_ranks, ranks, staleness):
    for rank, seen in enumerate(on_ranks(ranks, _count, 25, staleness)):
        for clock, (least, most) in enumerate(seen):
            if staleness == 0:  # averages
                continue
            assert least[rank] == clock, "a worker reads its own gradients"
            assert min(least[:ranks]) >= clock - staleness
            # Nobody can be further ahead than this worker's clock allows: others wait for it.
            assert max(most[:ranks]) <= clock + staleness + 1


def test_staleness_0_lets_everybody_read_the_same():
    found = on_processes(3, _count, 10, 0)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("staleness", [1, *slowly(2)])
def test_overlapped_reads_keep_the_bound(staleness):
    for rank, seen in enumerate(on_processes(3, _count, 20, staleness, True)):
        for clock, (least, _) in enumerate(seen):
            assert least[rank] == max(clock - 1, 0), "all but the last of its own"
            assert min(least) >= clock - staleness


def test_without_a_bound_a_fast_worker_does_not_wait():
    def unequal(comm):
        model, server = counting(comm, 2, None)
        if comm.rank == 0:
            for _ in range(30):
                model.count(0)
                server.step()
            comm.send(np.zeros(1), 1)  # only now may the other one begin
        else:
            comm.recv(np.zeros(1), 0)
        model.count(comm.rank)
        server.step()
        found = model.least()
        server.close()
        return found

    first, second = on_processes(2, unequal)
    assert first[0] == 31 and second == [second[0], 1] and second[0] >= 30


def _count_shared(comm, count, staleness, servers=None):
    model, server = counting(comm, count, staleness, servers=servers)
    if comm.rank not in server.workers:
        return server.serve()
    taken = []
    for batch in server.batches(count):
        model.count(batch)
        if comm.rank == 0:
            time.sleep(0.03)
        server.step()
        taken.append(batch)
    found = model.least(), model.most(), taken
    server.close()
    return found


@pytest.mark.parametrize("staleness", [None, *slowly(2)])
@pytest.mark.parametrize(("on_ranks", "ranks", "servers"), [(on_processes, 3, None), (over_tcp, 5, 2)])
def test_each_shared_batch_is_done_once(on_ranks, ranks, servers, staleness):
    found = [each for each in on_ranks(ranks, _count_shared, 40, staleness, servers) if each]
    for least, most, _ in found:
        assert least == most == [1] * 40
    assert sorted(batch for *_, taken in found for batch in taken) == list(range(40))


# --- delay compensation ----------------------------------------------------------------------------------------


def _two_pushes(comm, decay):
    """Worker 0 pushes three times; then worker 1 pushes a gradient that it computed with the first parameters."""
    torch.set_num_threads(1)
    model = nn.Linear(6, 5)
    nn.init.constant_(model.bias, 0.5)
    with torch.no_grad():
        model.weight.copy_(torch.arange(30.0).view(5, 6) / 10)
    server = ringreduce.ParameterServer(
        comm, model, torch.optim.SGD, lr=0.5, staleness=None, delay_compensation=0.3, compensation_decay=decay
    )
    first, gradients = values(model), []
    server._client.pull(server._values)  # the values that worker 1 computes with are noted
    comm.barrier()
    if comm.rank == 0:
        for step in range(3):
            for number, p in enumerate(model.parameters()):
                p.grad = torch.full_like(p, 0.1 * (step + 1) + number)
            gradients.append([p.grad.clone() for p in model.parameters()])
            server.step()
        comm.barrier()
        comm.barrier()
    else:
        comm.barrier()
        for p in model.parameters():
            p.grad = p.detach() - 0.2
        gradients.append([p.grad.clone() for p in model.parameters()])
        server.step()
        comm.barrier()
    server._client.ask(-1, 100 + comm.rank)
    server._client.pull(server._values)
    found = values(model)
    server.close()
    return first, gradients, found


@pytest.mark.parametrize("decay", [None, 0.9])
def test_compensation_follows_the_formula(decay):
    (first, early, found), (_, (late,), again) = on_processes(2, _two_pushes, decay)
    assert same(found, again)
    for number, start in enumerate(first):
        w = then = start.double().numpy()
        mean = np.zeros_like(w)
        for gradients, delayed in [*((g, False) for g in early), (late, True)]:
            g = gradients[number].double().numpy()
            strength = 0.3
            if decay is not None:
                mean = decay * mean + (1 - decay) * g * g
                strength = 0.3 / np.sqrt(mean + 1e-7)
            # Worker 0 pulls after each push, so its gradients are not delayed.
            w = w - 0.5 * (g + strength * g * g * ((w - then) if delayed else 0.0))
        np.testing.assert_allclose(found[number].numpy(), w, rtol=2e-6)


# --- sparse rows -----------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Whole numbers, so that every order of adding gradients gives the same."""

    def __init__(self, sparse=True, rows=37):
        super().__init__()
        self.table = nn.Embedding(rows, 4, sparse=sparse)
        self.bag = nn.EmbeddingBag(rows, 4, mode="sum", sparse=sparse)
        self.scale = nn.Parameter(torch.ones(4))
        for p in (self.table.weight, self.bag.weight):
            nn.init.constant_(p, 2.0)

    def forward(self, words):
        return (self.table(words) * self.scale).sum() + (self.bag(words) * 2).sum()


def _words(step, part):
    # With duplicates.
    return torch.randint(0, 37, (3, 5), generator=torch.Generator().manual_seed(50 * step + part)) // 2


def _sparse(comm, kind, options, staleness, ranks):
    """The workers take turns, so that asynchronous training has one possible result, too."""
    torch.set_num_threads(1)
    model = Words()
    server = ringreduce.ParameterServer(
        comm, model, kind, staleness=staleness, servers=comm.size - ranks, **options
    )
    if comm.rank not in server.workers:
        return server.serve()
    found = []
    for step in range(4):
        server.zero_grad()
        model(_words(step, comm.rank)).backward()
        server.step()
        found.append(values(model))
    state = server.state_dict()
    server.close()
    return found, state


def _dense(kind, options, ranks):
    """The same in one process, with the average of the ranks' gradients."""
    model, found = Words(), []
    optimizer = kind(model.parameters(), **options)
    for step in range(4):
        optimizer.zero_grad()
        (sum(model(_words(step, rank)) for rank in range(ranks)) / ranks).backward()
        for p in model.parameters():
            if p.grad.is_sparse:
                p.grad = p.grad.coalesce()
        optimizer.step()
        found.append(values(model))
    return found, optimizer.state_dict()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.5}),
        (torch.optim.Adagrad, {"lr": 0.5}),
        (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}),  # changes rows that have no gradient
    ],
)
def test_sparse_rows_are_those_of_one_process(kind, options):
    ours = on_processes(4, _sparse, kind, options, 0, 2)
    expected, state = _dense(kind, options, 2)
    for found, own in ours[:2]:
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        for number, each in state["state"].items():
            for key, value in each.items():
                if torch.is_tensor(value):
                    assert torch.equal(own["state"][number][key], value.to_dense())


def test_only_rows_with_gradients_travel(monkeypatch):
    from ringreduce.parameter_server import wire

    sent: list[int] = []
    send = wire.Channel.send

    def counted(self, message, answer):
        sent.extend(values.numel() for _, values in message.rows)
        return send(self, message, answer)

    def one_row(comm):
        model = nn.Embedding(10_000, 8, sparse=True)
        with ringreduce.ParameterServer(comm, model, torch.optim.SparseAdam, lr=0.1, staleness=1) as server:
            for step in range(3):
                server.zero_grad()
                model(torch.tensor([step, 9_999, step])).sum().backward()
                server.step()
            sent.append(-1)
        return sum(sent[: sent.index(-1)])

    monkeypatch.setattr(wire.Channel, "send", counted)
    # Two rows a push, at most four that have changed a pull, each 8 numbers, and copies of the pushes.
    assert max(on_processes(2, one_row)) <= 3 * (2 + 2 + 4) * 8 * 2


def test_a_parameter_that_no_worker_uses_does_not_change():
    def unused(comm):
        model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        first = values(model)
        with ringreduce.ParameterServer(comm, model, torch.optim.AdamW, lr=0.1, staleness=1) as server:
            for _ in range(2):
                server.zero_grad()
                model[0](torch.ones(2, 3)).sum().backward()
                server.step()
        return same(first[2:], values(model[1])), same(first[:2], values(model[0]))

    assert on_processes(2, unused) == [(True, False)] * 2


def test_asynchronous_training_learns():
    def train(comm):
        torch.set_num_threads(1)
        model = network()
        with ringreduce.ParameterServer(
            comm, model, torch.optim.SGD, lr=0.05, staleness=None, delay_compensation=0.04
        ) as server:
            losses = []
            for _ in range(60):
                server.zero_grad()
                backward(model, 0, 0)
                losses.append(sum(float(p.grad.square().sum()) for p in model.parameters()))
                server.step()
        return losses[0], losses[-1]

    for first, last in on_processes(3, train):
        assert last < 0.2 * first
