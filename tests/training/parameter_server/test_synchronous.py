"""With staleness 0, training has the bits of synchronous data parallelism."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import ringreduce
from tests.conftest import on_processes, over_tcp, slow_rows, slowly
from tests.training.parameter_server.models import (
    backward,
    data_parallel,
    network,
    same,
    values,
    with_servers,
)

KINDS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.Adafactor, {"lr": 0.01}),  # needs whole parameters
]


def _same_states(ours, theirs):
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for number, state in theirs["state"].items():
        for key, value in state.items():
            own = ours["state"][number][key]
            assert torch.equal(own, value) if torch.is_tensor(value) else own == value, (number, key)


GROUPS = [(on_processes, 2), (on_processes, 3), (over_tcp, 4), (over_tcp, 5)]
QUICK = list(zip(KINDS, GROUPS, strict=False))
OTHERS = [each for each in product(KINDS, GROUPS) if each not in QUICK]


@pytest.mark.parametrize("case", [*QUICK, *slowly(*OTHERS)])
def test_the_bits_of_data_parallelism(case):
    (kind, options), (on_ranks, ranks) = case
    args = (kind, options, 5, torch.float32)
    theirs = on_ranks(ranks, data_parallel, *args, reproducible=True)
    ours = on_ranks(ranks, with_servers, *args)
    for (own, state), (reference, expected) in zip(ours, theirs, strict=True):
        assert same(own, reference)
        _same_states(state, expected)


@pytest.mark.parametrize("dtype", [torch.float64, *slowly(torch.bfloat16)])
def test_other_dtypes(dtype):
    args = (torch.optim.SGD, {"lr": 0.1}, 4, dtype)
    theirs = on_processes(3, data_parallel, *args, reproducible=True)
    assert all(
        same(a, b) for (a, _), (b, _) in zip(on_processes(3, with_servers, *args), theirs, strict=True)
    )


def _with_some_servers(comm, servers, copies):
    return with_servers(
        comm, torch.optim.Adam, {"lr": 0.01}, 5, torch.float32, servers=servers, copies=copies
    )


@pytest.mark.parametrize(("servers", "copies"), [(2, True), *slow_rows((1, None), (2, False), (3, True))])
def test_dedicated_servers(servers, copies):
    theirs = on_processes(
        2, data_parallel, torch.optim.Adam, {"lr": 0.01}, 5, torch.float32, reproducible=True
    )
    ours = on_processes(2 + servers, _with_some_servers, servers, copies)
    assert ours[2:] == [None] * servers
    assert all(same(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=False))


def _shared(comm, steps):
    torch.set_num_threads(1)
    model = network(comm.rank)
    with ringreduce.ParameterServer(comm, model, torch.optim.SGD, lr=0.1, momentum=0.9) as server:
        taken = 0
        for _ in range(2):
            for number in server.batches(steps * comm.size):
                server.zero_grad()
                backward(model, *divmod(number, comm.size))
                server.step()
                taken += 1
    return values(model), taken


def test_shared_batches_have_the_same_bits_whoever_does_them():
    def twice(comm):
        model = network(comm.rank)
        model = ringreduce.DataParallel(model, comm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in (*range(4), *range(4)):
            optimizer.zero_grad()
            backward(model, step, comm.rank)
            optimizer.step()
        return values(model.module)

    theirs = on_processes(3, twice, reproducible=True)
    ours = on_processes(3, _shared, 4)
    assert all(same(own, reference) for (own, _), reference in zip(ours, theirs, strict=True))
    assert sum(taken for _, taken in ours) == 2 * 4 * 3


def _resumed(comm, kind, options, before, after, staleness):
    """Saves after some steps, and continues with a new model and server."""
    torch.set_num_threads(1)
    model = network(comm.rank)
    with ringreduce.ParameterServer(comm.split(0), model, kind, staleness=staleness, **options) as server:
        for step in range(before):
            server.zero_grad()
            backward(model, step, comm.rank)
            server.step()
        saved = server.state_dict(), model.state_dict()
    other = network(7 + comm.rank)
    with ringreduce.ParameterServer(comm.split(0), other, kind, staleness=staleness, **options) as server:
        other.load_state_dict(saved[1])
        server.load_state_dict(saved[0])
        for step in range(before, before + after):
            server.zero_grad()
            backward(other, step, comm.rank)
            server.step()
    return values(other)


@pytest.mark.parametrize(("kind", "options"), [KINDS[1], *slow_rows(KINDS[0], KINDS[2])])
def test_training_continues_from_a_state(kind, options):
    theirs = on_processes(2, data_parallel, kind, options, 6, torch.float32, reproducible=True)
    ours = on_processes(2, _resumed, kind, options, 2, 4, 0)
    assert all(same(own, reference) for own, (reference, _) in zip(ours, theirs, strict=True))


def _scheduled(comm):
    torch.set_num_threads(1)
    model = network()
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1}]
    groups.append({"params": [p for p in model.parameters() if p.ndim == 1]})
    with ringreduce.ParameterServer(comm, model, torch.optim.SGD, groups, lr=0.1) as server:
        schedule = torch.optim.lr_scheduler.ExponentialLR(server, 0.5)
        for step in range(4):
            server.zero_grad(set_to_none=False)
            backward(model, step, 0)
            server.step()
            schedule.step()
    return values(model)


def _scheduled_alone(comm):
    torch.set_num_threads(1)
    model = network()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": matrices, "weight_decay": 0.1}, {"params": others}], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(4):
        optimizer.zero_grad()
        backward(model, step, 0)
        optimizer.step()
        schedule.step()
    return values(model)


def test_groups_and_learning_rates_are_those_of_one_process():
    (alone,) = on_processes(1, _scheduled_alone)
    # The average of two equal gradients is exact.
    assert all(same(own, alone) for own in on_processes(2, _scheduled))
