"""A training whose gradients are whole numbers, so that any number of ranks gets the same bits."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before processes are forked
import torch.distributed.fsdp

import ringreduce
from ringreduce import elastic
from tests.training.elastic.ranks import Me, kill_self

STEPS = 24
SAMPLES = 24
DYING = 1  # a place on the board


class Net(torch.nn.Module):
    """Its gradients depend on the samples and on the order of the steps, but not on its weights."""

    def __init__(self, width: int = 37) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(width, 16, dtype=torch.float64))
        self.second = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        self.third = torch.nn.Parameter(torch.zeros(2999, dtype=torch.float64))
        self.more = torch.nn.ParameterList(torch.zeros(700, dtype=torch.float64) for _ in range(5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        """Returns the sum of the losses of samples, int64 [n]."""
        self.seen += 1
        slopes = (x.sum() + len(x) * (torch.arange(p.numel()) % 7).view(p.shape) for p in self.parameters())
        return sum((p * slope).sum() for p, slope in zip(self.parameters(), slopes, strict=True))


@dataclass
class Plan:
    """What happens in a training.

    Attributes:
        dies: for each process that dies, the step in which it does.
        after: for each newcomer, the process after whose death it comes.
    """

    kind: str = "dp"
    transport: str | None = None
    minimum: int = 1
    dies: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    copies: int = 1
    seed: int = 0
    steps: int = STEPS
    checkpoints: tuple[str, int] | None = None
    resume: bool = True


def make(kind: str, comm: ringreduce.Communicator, copies: int = 1, width: int = 37) -> tuple[Any, Any]:
    """Returns a model and its optimizer."""
    net: Any = Net(width)
    if kind == "fsdp":
        elastic.init_process_group(comm)

        def again() -> tuple[Any, Any]:
            made = torch.distributed.fsdp.fully_shard(Net(width))
            return made, torch.optim.SGD(made.parameters(), lr=0.25, momentum=0.5)

        return elastic.FullyShard(again, copies=copies), None
    if kind == "ddp":
        elastic.init_process_group(comm)
        net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
        return net, torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
    model = net if kind in ("sharded2", "parameters") else ringreduce.DataParallel(net, comm, bucket_mb=0.005)
    if kind == "dp":
        return model, torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    how: dict[str, Any] = {"stage": 1 if kind == "sharded1" else 2, "copies": copies, "bucket_mb": 0.005}
    if kind == "parameters":
        how["shard"] = "parameters"
    return model, ringreduce.ShardedOptimizer(
        net.parameters(), torch.optim.SGD, comm, lr=0.25, momentum=0.5, **how
    )


def kill_soon(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def train(me: Me, plan: Plan) -> dict[str, Any]:
    """Trains on a process, which may die, or come later."""
    torch.set_num_threads(1)
    if me.number >= me.members:
        os.environ["RINGREDUCE_NEWCOMER"] = "yes"
        me.wait_for(plan.after[me.number], DYING)
    comm = elastic.start(
        me.name, timeout=me.timeout, rank=me.number, size=me.members, transport=plan.transport
    )
    model, optimizer = make(plan.kind, comm, plan.copies)
    if plan.kind == "fsdp":
        state = elastic.State(comm, fsdp=model, count=0, tensor=torch.zeros(2))
    else:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        state = elastic.State(
            comm, model=model, optimizer=optimizer, schedule=schedule, count=0, tensor=torch.zeros(2)
        )
    tries, first = 0, -1
    chance = random.Random(f"{plan.seed} {me.number}")
    saved = plan.checkpoints and elastic.Checkpoints(
        plan.checkpoints[0], every=plan.checkpoints[1], resume=plan.resume
    )
    for step in elastic.steps(
        state, plan.steps, minimum=plan.minimum, timeout=me.timeout, checkpoints=saved or None
    ):
        tries += 1
        with step:
            first = step.number if first < 0 else first
            if plan.dies.get(me.number) == step.number:
                me.note(DYING)
                kill_soon(chance.choice([0.0, 0.004]) * chance.random())
            elif step.number > plan.dies.get(me.number, plan.steps):
                kill_self()  # the timer's thread is late
            one_step(step, state)
            if me.number in plan.dies:
                time.sleep(0.0003)
    return {**found_in(state), "tries": tries, "first": first, "size": state.comm.size}


def one_step(step: Any, state: Any) -> None:
    """Adds this rank's samples to all that a state can hold."""
    state.tensor += 1
    samples = torch.arange(SAMPLES)[step.rank :: step.size] + step.number
    holder = state.fsdp if hasattr(state, "fsdp") else state
    holder.optimizer.zero_grad()
    (holder.model(samples) * step.size).backward()
    holder.optimizer.step()
    state.count += 1
    if holder is state:
        state.schedule.step()
    elif state.count % 5 == 0:  # a schedule would hold the optimizer, which changes
        holder.optimizer.param_groups[0]["lr"] *= 0.5


def found_in(state: Any) -> dict[str, Any]:
    if hasattr(state, "fsdp"):
        model, optimizer = state.fsdp.model, state.fsdp.optimizer
        return {
            "weights": [p.full_tensor().detach() for p in model.parameters()],
            "momenta": {
                number: own["momentum_buffer"].full_tensor()
                for number, own in optimizer.state_dict()["state"].items()
            },
            "lr": optimizer.param_groups[0]["lr"],
            "count": (state.step, state.count, state.tensor.tolist(), int(model.seen), state.step),
        }
    net = getattr(state.model, "module", state.model)
    return {
        "weights": [p.detach().clone() for p in net.parameters()],
        "momenta": {
            number: own["momentum_buffer"] for number, own in state.optimizer.state_dict()["state"].items()
        },
        "lr": state.optimizer.param_groups[0]["lr"],
        "count": (state.step, state.count, state.tensor.tolist(), int(net.seen), state.schedule.last_epoch),
    }


def undisturbed(steps: int = STEPS) -> dict[str, Any]:
    """Returns what a single process comes to."""
    (comm,) = ringreduce.local_group(1)
    model, optimizer = make("dp", comm)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    state = elastic.State(
        comm, model=model, optimizer=optimizer, schedule=schedule, count=0, tensor=torch.zeros(2)
    )
    for step in elastic.steps(state, steps):
        with step:
            one_step(step, state)
    return found_in(state)


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares all bits of what a process has come to."""
    assert found["count"] == expected["count"]
    assert found["lr"] == expected["lr"]
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        assert torch.equal(ours, theirs)
    assert found["momenta"].keys() == expected["momenta"].keys()
    for number, theirs in expected["momenta"].items():
        assert torch.equal(found["momenta"][number].view_as(theirs), theirs)
