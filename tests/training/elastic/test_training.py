"""Ranks die and come while they train: the survivors have the bits of an undisturbed training."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from functools import partial
from itertools import cycle

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import elastic
from ringreduce.training.foundation import transfer
from tests.conftest import slowly
from tests.faults.conftest import OVER_OFI
from tests.training.elastic.ranks import Job, kill_self
from tests.training.elastic.training import DYING, STEPS, Plan, check, kill_soon, make, train, undisturbed

KINDS = ["dp", "ddp", "fsdp", "sharded1", "sharded2", "parameters"]


def over_either(kinds: list[str], first_quick: int = 0):
    """Each kind over each transport. From `first_quick` on, every other kind is quick, over the transports by turns."""
    quick = list(zip(kinds[first_quick::2], cycle(["shm", "tcp"]), strict=False))
    places = [
        pytest.param(kind, transport, marks=[] if (kind, transport) in quick else pytest.mark.slow)
        for kind in kinds
        for transport in ("shm", "tcp")
    ]
    places += [pytest.param(kind, *OVER_OFI.values, marks=OVER_OFI.marks) for kind in kinds]
    return pytest.mark.parametrize(("kind", "transport"), places, indirect=["transport"])


@pytest.fixture(scope="module")
def expected():
    return undisturbed()


def run(plan: Plan, members: int = 4) -> list:
    body = partial(train, plan=plan)
    job = Job(body, members, body, len(plan.after))
    return job.values(but=tuple(plan.dies))


def check_all(found, plan, expected):
    deaths = len(plan.dies)
    for number, own in enumerate(found):
        if number not in plan.dies:
            check(own, expected)
            assert own["tries"] - (STEPS - own["first"]) <= deaths  # a death costs one step at most


@over_either(KINDS)
@pytest.mark.parametrize("seed", [0, *slowly(1, 2, 3)])
def test_survivors_lose_no_step(kind, transport, seed, expected):
    plan = Plan(kind, dies={0: 4, 2: 11}, seed=seed)
    found = run(plan)
    check_all(found, plan, expected)
    assert [own["size"] for own in found if own] == [2, 2]


@pytest.mark.parametrize("kind", ["ddp", *slowly(*(kind for kind in KINDS if kind != "ddp"))])
def test_two_ranks_die_at_once(kind, expected):
    copies = 0 if kind in ("dp", "ddp") else 2
    plan = Plan(kind, dies={1: 7, 2: 7}, copies=copies)
    check_all(run(plan), plan, expected)


@over_either(KINDS, first_quick=1)
def test_newcomers_take_the_places(kind, transport, expected):
    plan = Plan(kind, minimum=4, dies={0: 4, 3: 11, 5: 17}, after={4: 0, 5: 3, 6: 5})
    found = run(plan)
    check_all(found, plan, expected)
    assert [own["size"] for own in found if own] == [4] * 4
    assert found[4]["first"] in (4, 5)


def _with_a_late_loss(me):
    """Process 2 dies after the agreement. Process 0 notices in the next step, but process 1 in the agreement."""
    comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
    model, optimizer = make("dp", comm)
    state = elastic.State(comm, model=model, optimizer=optimizer, sizes=0)

    def late(*args):
        ringreduce.Communicator.all_reduce(comm, *args)
        me.wait_for(2)
        raise ringreduce.PeerLost("a test says so", 2)

    for step in elastic.steps(state, 8):
        with step:
            optimizer.zero_grad()
            model(torch.arange(3) + step.number).backward()
            if (me.number, step.number) == (1, 5):
                step._group.comm.all_reduce = late
            optimizer.step()
            if (me.number, step.number) == (2, 5):
                me.note()
                kill_self()
            state.sizes += step.size
    return state.sizes, state.comm.size


def test_the_size_of_a_step_is_that_with_which_it_began():
    assert Job(_with_a_late_loss, 3).values(but=(2,)) == [(6 * 3 + 2 * 2, 2)] * 2 + [None]


def _with_another_model(me, width, minimum):
    torch.set_num_threads(1)
    os.environ["RINGREDUCE_NEWCOMER"] = "yes"
    me.wait_for(0, DYING)
    comm = elastic.start(me.name, timeout=me.timeout)
    model, optimizer = make("dp", comm, width=width)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    state = elastic.State(
        comm, model=model, optimizer=optimizer, schedule=schedule, count=0, tensor=torch.zeros(2)
    )
    for step in elastic.steps(state, STEPS, minimum=minimum):
        pytest.fail(f"step {step.number} with another model")


@pytest.mark.parametrize(
    ("width", "minimum", "said"),
    [
        (
            38,
            3,
            r"rank 2's state differs .*: model: 'first': float64\[38, 16\]; the group has .*\[37, 16\]",
        ),
        (37, 2, r"rank 2's state differs .*: minimum: 2; the group has minimum: 3"),
    ],
)
def test_a_newcomer_with_another_state_is_told_and_the_others_go_on(width, minimum, said, expected):
    plan = Plan(minimum=3, dies={0: 6}, after={4: 0})
    bad = partial(_with_another_model, width=width, minimum=minimum)
    good = partial(_late, plan=plan)
    found = Job(partial(train, plan=plan), 3, lambda me: (bad if me.number == 3 else good)(me), 2).outcomes()
    assert found[0] is None
    assert isinstance(found[3].error, elastic.StateMismatch)
    assert re.search(said, str(found[3].error)), found[3].error
    for number in (1, 2, 4):
        if found[number].error is not None:
            raise found[number].error
        check(found[number].value, expected)


def _late(me, plan):
    me.wait_for(0, DYING)
    time.sleep(0.5)  # so that the other newcomer is let in first
    return train(me, plan)


def test_too_few_ranks_are_an_error():
    plan = Plan(minimum=3, dies={1: 5})
    body = partial(train, plan=plan)
    found = Job(body, 3, timeout=1.0).outcomes()
    for number in (0, 2):
        assert isinstance(found[number].error, TimeoutError)
        assert str(found[number].error) == (
            "only 2 ranks are left, minimum is 3, and no more joined within 1 s"
        )


def _dies_while_it_gets_the_state(me, plan, after):
    real = transfer.move

    def move(comm, outgoing, incoming):
        kill_soon(after)
        time.sleep(after)
        real(comm, outgoing, incoming)

    transfer.move = move
    return train(me, plan)


@pytest.mark.parametrize("after", [0.003, *slowly(0.0, 0.001)])
@over_either(["dp", "sharded2"])
def test_a_newcomer_dies_while_it_gets_the_state(kind, after, transport, expected):
    plan = Plan(kind, minimum=3, dies={0: 6, 3: -1}, after={3: 0, 4: 0})
    first = partial(_dies_while_it_gets_the_state, plan=plan, after=after)
    second = partial(_late, plan=plan)
    job = Job(partial(train, plan=plan), 3, lambda me: (first if me.number == 3 else second)(me), 2)
    check_all(job.values(but=(0, 3)), plan, expected)


def test_without_copies_the_state_of_a_lost_rank_is_lost():
    plan = Plan("sharded2", dies={1: 5}, copies=0)
    found = Job(partial(train, plan=plan), 3).outcomes()
    for number in (0, 2):
        assert isinstance(found[number].error, elastic.StateLost)
        assert "the state of rank 1 of 3 is lost" in str(found[number].error)


def test_without_copies_newcomers_come_all_the_same(expected):
    plan = Plan("sharded2", copies=0, minimum=3, dies={}, after={2: 0})
    found = Job(partial(_notes, plan=plan), 2, partial(train, plan=plan), 1).values()
    check_all(found, plan, expected)
    assert found[2]["size"] == 3


def _notes(me, plan):
    me.note(DYING)
    return train(me, plan)
