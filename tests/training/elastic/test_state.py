"""What a State holds, keeps and puts back, on one rank; and learning rates that follow the number of ranks."""

from __future__ import annotations

import importlib.util
import os
import random
import signal

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before processes are forked

import ringreduce
from ringreduce import elastic
from tests.training.elastic.ranks import Job


def alone():
    (comm,) = ringreduce.local_group(1)
    return comm


def test_names():
    state = elastic.State(alone(), epoch=3, tensor=torch.zeros(2))
    state.epoch += 1
    assert state.epoch == 4
    with pytest.raises(ValueError, match="the name 'epoch' is taken"):
        state.register("epoch", 1)
    for name in ("step", "comm", "register", "_hidden"):
        with pytest.raises(ValueError, match="is taken"):
            state.register(name, 1)
    with pytest.raises(AttributeError, match="State has no 'other'; it has epoch, tensor"):
        print(state.other)
    with pytest.raises(AttributeError, match=r"State has no 'other': add it with register\(\)"):
        state.other = 1
    with pytest.raises(TypeError, match="'tensor' cannot become a int"):
        state.tensor = 1


class Sampler:
    def __init__(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_a_lost_step_is_put_back():
    net = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = Sampler()
    state = elastic.State(
        alone(), net=net, optimizer=optimizer, sampler=sampler, tensor=torch.zeros(2), value=[1]
    )
    torch.manual_seed(1)
    kept, drawn = state.keep(), (torch.rand(1), random.random(), np.random.rand())
    net(torch.randn(4, 3)).sum().backward()
    sampler.position, state.value = 9, [2]
    state.tensor += 1
    state.put_back(kept)
    assert (int(net.num_batches_tracked), sampler.position, state.value) == (0, 0, [1])
    assert state.tensor.tolist() == [0, 0] and net.running_mean.tolist() == [0, 0, 0]
    assert all(p.grad is None for p in net.parameters())
    assert (torch.rand(1), random.random(), np.random.rand()) == drawn


def test_other_exceptions_leave_the_loop():
    state = elastic.State(alone(), value=0)
    with pytest.raises(KeyError):
        for step in elastic.steps(state, 3):
            with step:
                raise KeyError("mine")
    assert state.step == 0


def test_a_block_without_optimizer_is_agreed_on_at_its_end():
    state = elastic.State(alone(), value=0)
    seen = []
    for step in elastic.steps(state, 3):
        with step:
            state.value += 1
            assert not step.done
        seen.append((step.number, step.done))
    assert (seen, state.value) == ([(0, True), (1, True), (2, True)], 3)


def test_a_step_must_be_entered():
    with pytest.raises(RuntimeError, match="a step must be the context of a with block"):
        for _ in elastic.steps(elastic.State(alone()), 3):
            pass


def test_arguments():
    state = elastic.State(alone())
    with pytest.raises(ValueError, match="minimum must be at least 1, not 0"):
        next(elastic.steps(state, 3, minimum=0))
    state.step = 5
    with pytest.raises(ValueError, match="count is 3, but the state has done 5 steps"):
        next(elastic.steps(state, 3))
    with pytest.raises(ValueError, match="every and keep must be positive, not 0 and 2"):
        elastic.Checkpoints("x", every=0)


def test_newcomers_cannot_find_a_group_of_threads():
    with pytest.raises(ValueError, match="newcomers cannot find this group"):
        for step in elastic.steps(elastic.State(alone()), 3, minimum=2):
            with step:
                pass


def _scaled(me):
    comm = me.init()
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    state = elastic.State(comm, scale_learning_rate=True, net=net, optimizer=optimizer, schedule=schedule)
    rates = []
    for step in elastic.steps(state, 6):
        with step:
            if step.number == 2 and me.number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_learning_rates_follow_the_number_of_ranks():
    found = Job(_scaled, 3).values(but=(1,))
    # Both survivors were ready to apply step 2, so they did, and the learning rate fell by a third after it.
    assert found[0] == found[2] == pytest.approx([0.3, 0.3, 0.3, 0.1, 0.1, 0.1])
