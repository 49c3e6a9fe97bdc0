"""LocalSGD, DiLoCo and StreamingDiLoCo on ranks that are lost and that come: a step of the loop is a round."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before processes are forked

import ringreduce
from ringreduce import elastic
from ringreduce.low_communication import DiLoCo, LocalSGD, StreamingDiLoCo
from ringreduce.low_communication.average import Average
from ringreduce.training.foundation.exchange import AllReduce
from tests.conftest import slowly
from tests.training.elastic.ranks import Job, kill_self
from tests.training.elastic.training import DYING, SAMPLES, Net
from tests.training.models import on_ranks

ROUNDS, EVERY = 6, 4
STREAMING = {"every": EVERY, "fragments": 3, "lr": 0.5, "momentum": 0.5}
FATAL = 3  # the round in which a rank dies
SYNCHRONISED, REFUSED = 2, 3  # places on the board

METHODS: dict[str, Any] = {
    "local_sgd": partial(LocalSGD, every=EVERY),
    "diloco": partial(DiLoCo, every=EVERY, lr=0.5, momentum=0.5),
    "streaming": partial(StreamingDiLoCo, overlap=0, **STREAMING),
}
OTHERS: dict[str, Any] = {
    "adaptive": partial(LocalSGD, every=EVERY, adaptive=True),
    "int8": partial(DiLoCo, every=EVERY, wire="int8"),
    "another": partial(DiLoCo, every=EVERY, lr=0.25, momentum=0.5),
    # At the end of a round, two fragments are under way.
    "overlapped": partial(StreamingDiLoCo, overlap=3, **STREAMING),
}
ALL = pytest.mark.parametrize("method", ["diloco", *slowly(*(name for name in METHODS if name != "diloco"))])


class Training:
    """Plain SGD whose gradients are whole numbers, and whose averages are the same on any number of ranks."""

    def __init__(self, comm: ringreduce.Communicator, method: str) -> None:
        self.net = Net().to(torch.float32 if method == "int8" else torch.float64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.25)
        self.outer = {**METHODS, **OTHERS}[method](self.net.parameters(), comm)
        self.state = elastic.State(comm, outer=self.outer, net=self.net)

    def local_step(self, step: Any, number: int) -> None:
        if self.outer.idle:
            self.outer.step()
            return
        samples = torch.arange(SAMPLES)[step.rank :: step.size] + step.number * EVERY + number
        self.optimizer.zero_grad()
        (self.net(samples) * step.size).backward()
        self.optimizer.step()
        self.outer.step()

    def found(self) -> dict[str, Any]:
        saved = self.outer.state_dict()
        fragments = saved.get("fragments", [saved.get("fragment", {"anchors": saved.get("average")})])
        momenta = [own for f in fragments for own in f.get("optimizer", {"state": {}})["state"].values()]
        return {
            "parameters": [p.detach().clone() for p in self.net.parameters()],
            "common": [anchor for fragment in fragments for anchor in fragment["anchors"]],
            "momenta": [own["momentum_buffer"] for own in momenta],
            "steps": (saved["steps"], self.state.step),
        }


def check(found: dict[str, Any], expected: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    """Compares all bits of what two processes have come to."""
    assert found["steps"] == expected["steps"]
    for name in {"parameters", "common", "momenta"} - set(but):
        assert len(found[name]) == len(expected[name])
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert torch.equal(ours, theirs), name


def reference(method: str) -> dict[str, Any]:
    """Returns what one process comes to.

    A change costs streaming's fragments, which are synchronised at different steps, what they have not sent yet.
    """
    (comm,) = ringreduce.local_group(1)
    training = Training(comm, method)
    for step in elastic.steps(training.state, ROUNDS):
        if method == "streaming" and step.number == FATAL:
            training.outer.regroup(comm)
        with step:
            for number in range(EVERY):
                training.local_step(step, number)
    return training.found()


def rounds(
    me: Any, method: str, minimum: int = 1, fatal: Any = None, count: int = ROUNDS, folder: Any = None
) -> dict[str, Any]:
    """Trains. fatal: what a member calls before each local step of the fatal round, the first time."""
    torch.set_num_threads(1)
    if me.number >= me.members:
        os.environ["RINGREDUCE_NEWCOMER"] = "yes"
        me.wait_for(1, DYING)
    comm = elastic.start(me.name, timeout=me.timeout, rank=me.number, size=me.members)
    training = Training(comm, method)
    tries, joined = 0, None
    saved = None if folder is None else elastic.Checkpoints(folder, every=2)
    for step in elastic.steps(training.state, count, minimum=minimum, timeout=me.timeout, checkpoints=saved):
        with step:
            tries += 1
            joined = step.number if joined is None else joined
            for number in range(EVERY):
                if step.number == FATAL and tries == FATAL + 1 and fatal is not None:
                    fatal(me, number)
                training.local_step(step, number)
            if step.number == FATAL:
                me.note(SYNCHRONISED)
    return {**training.found(), "tries": tries, "joined": joined, "size": training.state.comm.size}


def dies_in_the_middle(me: Any, number: int) -> None:
    if me.number == 1 and number == 2:
        me.note(DYING)
        kill_self()


def dies_in_the_exchange(me: Any, number: int) -> None:
    """After the ranks have told each other their steps, and before it sends anything else."""

    def deadly(*_: Any) -> None:
        me.note(DYING)
        kill_self()

    if me.number == 1:
        AllReduce.start = deadly


def dies_at_once(me: Any, number: int) -> None:
    """With what was sent in the round before under way."""
    if me.number == 1:
        me.note(DYING)
        kill_self()


def dies_before_it_receives(me: Any, number: int) -> None:
    """What was sent in the round before, the last local step of which is done."""

    def deadly(*_: Any) -> None:
        me.note(DYING)
        kill_self()

    if me.number == 1:
        Average.finish = deadly


def dies_between_two_survivors(me: Any, number: int) -> None:
    """When one survivor has made the outer step. The other hears of the death before it has."""
    finish = Average.finish

    def late(average: Average) -> None:
        finish(average)
        me.wait_for(2, SYNCHRONISED)
        if me.number == 1:
            kill_self()
        raise ringreduce.PeerLost("rank 1 died, says this rank", 1)

    if number == EVERY - 1 and me.number != 2:
        Average.finish = late if me.number == 1 else _once(late, finish)


def _once(first: Any, then: Any) -> Any:
    def finish(average: Average) -> list[Any]:
        Average.finish = then
        return first(average)

    return finish


MOMENTS = {
    "middle": dies_in_the_middle,
    "exchange": dies_in_the_exchange,
    "between": dies_between_two_survivors,
}
OVERLAPPED = {**MOMENTS, "at once": dies_at_once, "receive": dies_before_it_receives}
# The dead rank may have sent all that the others need in the round, which they then need not make again.
MAY_HAVE_SENT_ALL = ("middle", "receive")


@ALL
@pytest.mark.parametrize("moment", ["exchange", *slowly("middle", "between")])
def test_a_loss_costs_the_round(method, moment):
    values = Job(partial(rounds, method=method, fatal=MOMENTS[moment]), 3).values(but=(1,))
    expected = reference(method)
    for place in (0, 2):
        assert (values[place]["tries"], values[place]["size"]) == (ROUNDS + 1, 2)
        check(values[place], expected, but=("parameters",) if method == "streaming" else ())
    if method != "streaming":
        check(values[0], values[2])


@ALL
def test_a_newcomer_gets_the_common_model(method):
    run = partial(rounds, method=method, minimum=3)
    values = Job(partial(run, fatal=dies_in_the_middle), 3, run, 1).values(but=(1,))
    expected = reference(method)
    assert [value and value["joined"] for value in values] == [0, None, 0, FATAL]
    for place in (0, 2, 3):
        assert values[place]["size"] == 3
        check(values[place], expected, but=("parameters",) if method == "streaming" else ())


def rehearsed(change: int, leaver: int | None = 1, newcomer: bool = False) -> list[Any]:
    """Returns what the ranks of threads come to if a rank of three leaves before a round, and perhaps another comes."""

    def run(comm: ringreduce.Communicator) -> dict[str, Any]:
        members = comm.split(0 if comm.rank < 3 else None)
        others = comm.split(None if comm.rank == leaver else 0)
        training = Training(members or ringreduce.local_group(1)[0], "overlapped")

        def go(group: Any, begin: int, end: int) -> None:
            for number in range(begin, end if group else begin):
                step = SimpleNamespace(number=number, rank=group.rank, size=group.size)
                for local in range(EVERY):
                    training.local_step(step, local)

        go(members, 0, change)
        if others:
            state = others.broadcast_object(training.outer.common_state())
            if not members:
                training.outer.load_state_dict(state)
            training.outer.regroup(others)
        go(others, change, ROUNDS)
        return training.found()

    return on_ranks(4 if newcomer else 3, run)


def check_overlapped(found: dict[str, Any], first: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares with another process bit for bit, and with threads but for the order in which they add."""
    check(found, first, but=("parameters",))
    assert found["steps"] == (expected["steps"][0], ROUNDS)
    for name in ("parameters", "common", "momenta"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("moment", ["exchange", "receive", *slowly("middle", "between", "at once")])
def test_a_loss_leaves_what_is_under_way_to_the_survivors(moment):
    values = Job(partial(rounds, method="overlapped", fatal=OVERLAPPED[moment]), 3).values(but=(1,))
    (again,) = {values[place]["tries"] - ROUNDS for place in (0, 2)}
    assert again in ({0, 1} if moment in MAY_HAVE_SENT_ALL else {1})
    expected = rehearsed(FATAL + 1 - again)
    for place in (0, 2):
        assert values[place]["size"] == 2
        check_overlapped(values[place], values[0], expected[place])


def test_a_newcomer_takes_part_in_what_is_under_way():
    run = partial(rounds, method="overlapped", minimum=3)
    values = Job(partial(run, fatal=dies_at_once), 3, run, 1).values(but=(1,))
    expected = rehearsed(FATAL, newcomer=True)
    assert [value and value["joined"] for value in values] == [0, None, 0, FATAL]
    for place in (0, 2, 3):
        check_overlapped(values[place], values[0], expected[place])


@pytest.mark.parametrize("method", ["adaptive", "int8"])
def test_survivors_agree(method):
    values = Job(partial(rounds, method=method, fatal=dies_in_the_middle), 3).values(but=(1,))
    assert values[0]["steps"] == (ROUNDS * EVERY, ROUNDS)
    check(values[0], values[2])


def test_other_arguments_are_refused():
    """The first newcomer's learning rate is another one. The others go on with the next newcomer."""

    def newcomer(me):
        if me.number == 4:
            me.wait_for(3, REFUSED)
            return rounds(me, "diloco", minimum=3)
        with pytest.raises(elastic.StateMismatch) as caught:
            rounds(me, "another", minimum=3)
        me.note(REFUSED)
        return str(caught.value)

    member = partial(rounds, method="diloco", minimum=3, fatal=dies_in_the_middle)
    first, _, third, refused, fifth = Job(member, 3, newcomer, 2).values(but=(1,))
    assert "outer: lr: 0.25; the group has outer: lr: 0.5" in refused
    for found in (first, third, fifth):
        check(found, reference("diloco"))


@pytest.mark.parametrize("method", ["local_sgd", "diloco"])
def test_a_checkpoint_is_of_any_number_of_ranks(method, tmp_path):
    run = partial(rounds, method=method, folder=tmp_path)
    Job(partial(run, count=3), 3).values()
    for found in Job(run, 2).values():
        assert found["joined"] == 3
        check(found, reference(method))


@pytest.mark.parametrize("size", [2, *slowly(3)])
def test_a_checkpoint_holds_what_is_under_way(size, tmp_path):
    run = partial(rounds, method="overlapped", folder=tmp_path)
    Job(partial(run, count=3), 3).values()
    expected = rehearsed(3, leaver=None)[0]
    found = Job(run, size).values()
    for each in found:
        assert each["joined"] == 3
        check(each, found[0], but=("parameters",))
        for name in ("common", "momenta"):
            torch.testing.assert_close(each[name], expected[name], rtol=1e-12, atol=1e-9)


def alone(method: str, **options: Any) -> tuple[Any, Any]:
    (comm,) = ringreduce.local_group(1)
    net = torch.nn.Linear(2, 1)
    classes = {"local_sgd": LocalSGD, "streaming": StreamingDiLoCo}
    return net, classes[method](net.parameters(), comm, **options)


def test_the_optimizer_of_local_steps_is_refused():
    net, outer = alone("local_sgd")
    optimizer = torch.optim.SGD(net.parameters())
    for objects in ({"outer": outer, "own": optimizer}, {"own": optimizer, "outer": outer}):
        with pytest.raises(ValueError, match="State: 'own' is the optimizer of the local steps"):
            elastic.State(outer.comm, **objects)
    other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters())
    elastic.State(outer.comm, outer=outer, other=other)


def test_local_sgd_begins_to_keep_the_average_after_a_synchronisation():
    _, outer = alone("local_sgd", every=4, start=1)
    assert "average" not in outer.state_dict()
    for _ in range(3):
        outer.step()
    with pytest.raises(ValueError, match="must follow a synchronisation, not 2 steps after it"):
        outer.regroup(outer.comm)
    for _ in range(2):
        outer.step()
    outer.regroup(outer.comm)
    assert len(outer.state_dict()["average"]) == 2
