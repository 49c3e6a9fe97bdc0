"""Messages between two ranks: which receive gets which message, whatever their tags, sizes and sources."""

from __future__ import annotations

import random
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringreduce
from tests.conftest import on_processes, on_threads, slowly

SMALL, LARGE = 10, 300_000  # float32: sent whole at once, and only when the receive is there


def filled(count: int, value: float, shared: bool = False) -> Any:
    x = (ringreduce.empty if shared else np.empty)(count, "float32")
    x[:] = value
    return x


@pytest.mark.parametrize("size", [0, 1, SMALL, 4000, 16_384, 16_385, LARGE])
def test_tags_in_any_order(size, on_ranks):
    def rank_main(comm):
        tags = [3, 0, 2**31 - 1, 7, -5]
        if comm.rank == 0:
            works = [comm.send(filled(size, i), 1, tag=tag, async_op=True) for i, tag in enumerate(tags)]
            for work in works:
                work.wait(30)
        elif comm.rank == 1:
            for i in (4, 0, 3, 1, 2):
                assert (comm.recv(filled(size, -1), 0, tag=tags[i]) == i).all()

    on_ranks(3, rank_main)


def test_equal_tags_keep_their_order(on_ranks):
    def rank_main(comm):
        sizes = [1, 5000, 0, LARGE, 30, 16_384] * 3
        if comm.rank == 0:
            works = [comm.send(filled(size, i), 1, tag=i % 2, async_op=True) for i, size in enumerate(sizes)]
            for work in works:
                work.wait(30)
        else:
            for i in [*range(1, len(sizes), 2), *range(0, len(sizes), 2)]:
                assert (comm.recv(filled(sizes[i], -1), 0, tag=i % 2) == i).all()

    on_ranks(2, rank_main)


def test_messages_pile_up_before_the_one_asked_for(on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            for i in range(300):  # far more than a lane has slots, or room
                comm.send(filled(10 * i, i), 1)
            comm.send(filled(3, -1), 1, tag=1)
        else:
            assert (comm.recv(filled(3, 0), 0, tag=1) == -1).all()
            for i in range(300):
                assert (comm.recv(filled(10 * i, -1), 0) == i).all()

    on_ranks(2, rank_main)


@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize("background", [False, True])
def test_a_blocking_send_of_what_is_asked_for_later(source, background, on_ranks):
    """The sender does not come to the message that is asked for before it is rid of the others."""

    def rank_main(comm):
        if comm.rank == 0:
            for i in range(3):
                comm.send(filled(LARGE + i, i), 1)
            comm.send(filled(3, -1), 1, tag=1)
            comm.send(filled(LARGE, 7), 1)
        else:
            x = filled(3, 0)
            answer = comm.recv(x, source, tag=1, async_op=background)
            if background:
                answer.wait(30)
            assert (x == -1).all()
            for i in range(3):
                assert (comm.recv(filled(LARGE + i, -1), 0) == i).all()
            assert (comm.recv(filled(LARGE, 0), 0) == 7).all()

    on_ranks(2, rank_main)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.3])
def test_a_receive_that_comes_for_what_is_being_put_aside(delay, on_ranks):
    """Rank 1 waits for rank 2; meanwhile what rank 0 offers is put aside, as far as there is time for it."""
    count = 10_000_000

    def rank_main(comm):
        if comm.rank == 0:
            x = filled(count, 5)
            comm.barrier()
            comm.send(x, 1)
        elif comm.rank == 2:
            comm.barrier()
            time.sleep(delay)
            comm.send(filled(3, 2), 1, tag=1)
        else:
            y = filled(count, 0)
            comm.barrier()
            x, source = comm.recv(filled(3, 0), tag=1)
            assert (x == 2).all() and source == 2
            assert (comm.recv(y, 0) == 5).all()

    on_ranks(3, rank_main)


def test_a_send_ends_while_the_receiver_waits_for_another_tag(on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            comm.send(filled(LARGE, 5), 1)
            sent = time.monotonic()
            comm.send(filled(3, 2), 1, tag=1)
            return sent
        comm.recv(filled(3, 0), 0, tag=1)
        time.sleep(0.1)
        asked = time.monotonic()
        assert (comm.recv(filled(LARGE, 0), 0) == 5).all()
        return asked

    sent, asked = on_ranks(2, rank_main)
    assert sent < asked


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_any_source(size, on_ranks):
    def rank_main(comm):
        if comm.rank:
            comm.send(filled(size, comm.rank), 0, tag=4)
            return
        seen = []
        for i in range(comm.size - 1):
            x = filled(size, -1)
            if i % 2:
                work = comm.recv(x, tag=4, async_op=True)
                y, source = work.wait(30)
                assert source == work.source
            else:
                y, source = comm.recv(x, tag=4)
            assert y is x and (x == source).all()
            seen.append(source)
        assert sorted(seen) == list(range(1, comm.size))

    on_ranks(4, rank_main)


def test_a_message_goes_to_the_earliest_receive_that_it_fits(on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            xs = [filled(1, -1) for _ in range(4)]
            works = [
                comm.recv(x, source, tag=tag, async_op=True)
                for x, (source, tag) in zip(xs, [(None, 8), (1, 9), (None, 9), (1, 9)], strict=True)
            ]
            assert all(work.source is None and not work.done() for work in works)
            comm.send(filled(1, 0), 1)
            for work in reversed(works):
                work.wait(30)
            assert [x[0] for x in xs] == [103, 100, 101, 102]
            assert [work.source for work in works] == [1] * 4
        else:
            comm.recv(filled(1, -1), 0)  # all receives are there
            for i, tag in enumerate([9, 9, 9, 8]):
                comm.send(filled(1, 100 + i), 0, tag=tag)

    on_ranks(2, rank_main)


def test_a_source_is_known_of_receives_only(on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            for size in (SMALL, LARGE):
                work = comm.send(filled(size, 1), 1, async_op=True)
                assert work.wait(30) is None and work.source is None
        else:
            for size in (SMALL, LARGE):
                x = filled(size, 0)
                work = comm.recv(x, 0, async_op=True)
                assert work.wait(30) is x and work.source == 0
        work = comm.barrier(async_op=True)
        work.wait(30)
        assert work.source is None

    on_ranks(2, rank_main)


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
@pytest.mark.parametrize("world", [1, 2])
def test_to_oneself(size, world, on_ranks):
    def rank_main(comm):
        me = comm.rank
        x = filled(size, 5)
        comm.send(x, me, tag=2)
        x[:] = 6
        comm.send(x, me, tag=1)
        x[:] = 0
        assert (comm.recv(x, me, tag=1) == 6).all()
        y, source = comm.recv(x, tag=2)
        assert (y == 5).all() and source == me
        # The receive first.
        early = [comm.recv(filled(size, -1), source, async_op=True) for source in (me, None)]
        for value in (7, 8):
            assert comm.send(filled(size, value), me, async_op=True).wait(30) is None
        assert (early[0].wait(30) == 7).all()
        assert (early[1].wait(30)[0] == 8).all() and early[1].source == me
        comm.barrier()

    on_ranks(world, rank_main)


def test_to_oneself_from_another_thread(on_ranks):
    def rank_main(comm):
        thread = threading.Timer(0.05, comm.send, (filled(LARGE, 3), comm.rank))
        thread.start()
        assert (comm.recv(filled(LARGE, 0), comm.rank) == 3).all()
        thread.join()

    on_ranks(2, rank_main)


def test_receives_of_several_threads(on_ranks):
    def rank_main(comm):
        failed = []

        def receive(tag):
            try:
                for i in range(40):
                    size = [SMALL, LARGE // 10][i % 2]
                    x, source = comm.recv(filled(size, -1), tag=tag)
                    assert (x == 1000 * source + tag).all()
            except BaseException as error:
                failed.append(error)

        if comm.rank == 0:
            threads = [threading.Thread(target=receive, args=(tag,)) for tag in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failed, failed
        else:
            for i in range(40 // (comm.size - 1)):
                for tag in range(4):
                    # Every tag gets both sizes alternately, whoever sends: ranks take turns.
                    turn = i * (comm.size - 1) + comm.rank - 1
                    size = [SMALL, LARGE // 10][turn % 2]
                    comm.send(filled(size, 1000 * comm.rank + tag), 0, tag=tag)

    on_ranks(2, rank_main)


def test_unasked_messages_to_one_rank_do_not_stop_those_to_another(on_ranks):
    """Rank 2 reads nothing before rank 1 has all of its own."""

    def rank_main(comm):
        sizes = [100, 3000, 16_384, LARGE] * 3
        if comm.rank == 0:
            works = [comm.send(filled(size, i), 2, async_op=True) for i, size in enumerate(sizes)]
            for i in range(4):
                comm.send(filled(1_000_000, i), 1)
                comm.send(filled(3000, i), 1)
            for work in works:
                work.wait(30)
        elif comm.rank == 1:
            for i in range(4):
                assert (comm.recv(filled(1_000_000, -1), 0) == i).all()
                assert (comm.recv(filled(3000, -1), 0) == i).all()
            comm.send(filled(1, 0), 2)
        else:
            comm.recv(filled(1, -1), 1)
            for i, size in enumerate(sizes):
                assert (comm.recv(filled(size, -1), 0) == i).all()

    on_ranks(3, rank_main)


def test_large_messages_both_ways_at_once(on_ranks):
    def rank_main(comm):
        other = 1 - comm.rank
        for shared in (False, True):
            received = [filled(1_000_000, -1, shared) for _ in range(4)]
            works = [comm.send(filled(1_000_000, 10 * comm.rank + i, shared), other, tag=i, async_op=True)
                     for i in range(4)]  # fmt: skip
            works += [comm.recv(received[i], other, tag=i, async_op=True) for i in (2, 0, 3)]
            assert (comm.recv(received[1], other, tag=1) == 10 * other + 1).all()
            for work in works:
                work.wait(30)
            assert all((x == 10 * other + i).all() for i, x in enumerate(received))

    on_ranks(2, rank_main)


def test_arrays_that_are_not_contiguous(on_ranks):
    def rank_main(comm):
        x = np.zeros((40, 50), "float32")
        if comm.rank == 0:
            x[:] = np.arange(2000).reshape(40, 50)
            for _ in range(2):
                comm.send(x.T, 1)
        else:
            got, source = comm.recv(x.T)
            assert got.base is x and source == 0 and x[2, 3] == 103
            x[:] = 0
            got, source = comm.recv(x.T, async_op=True).wait(30)
            assert source == 0 and x[2, 3] == 103

    on_ranks(2, rank_main)


@pytest.mark.parametrize("kind", ["count", "dtype"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("background", [True, False])
def test_a_mismatch_says_what_both_ranks_called(kind, size, named, background, on_ranks):
    def rank_main(comm):
        if comm.rank == 0:
            with pytest.raises(ringreduce.MismatchError) as caught:
                comm.send(filled(size, 1), 1, tag=3)
                comm.barrier()
        else:
            y = np.zeros(size + (kind == "count"), "float32" if kind == "count" else "int32")
            with pytest.raises(ringreduce.MismatchError) as caught:
                work = comm.recv(y, 0 if named else None, tag=3, async_op=background)
                assert background, work
                work.wait(30)
            assert caught.value.rank == 0
        text = str(caught.value)
        assert f"rank 0: send(float32[{size}], tag 3) to rank 1;" in text
        call = f"recv(float32[{size + 1}], tag 3)" if kind == "count" else f"recv(int32[{size}], tag 3)"
        assert text.endswith(f"rank 1: {call} from {'rank 0' if named else 'any rank'}")

    on_ranks(2, rank_main)


@pytest.mark.parametrize("early", [True, False])
def test_a_mismatch_with_oneself(early):
    def rank_main(comm):
        x, y = filled(3, 1), filled(4, 1)
        work = comm.recv(y, 0, async_op=True) if early else None
        with pytest.raises(ringreduce.MismatchError, match=r"rank 0: send\(float32\[3\]\) to rank 0; "):
            comm.send(x, 0)
            comm.recv(y, 0)
        if work:
            with pytest.raises(ringreduce.MismatchError, match=r"rank 0: recv\(float32\[4\]\) from rank 0"):
                work.wait(30)

    on_threads(1, rank_main)


# --- random programs against a model ------------------------------------------------------------------------

SIZES = [0, 1, 10, 11, 1000, 4096, 16_384, 20_000, 200_000, 700_000]


class Plan(NamedTuple):
    """A message has the size of its tag, so that it fits every receive that may take it."""

    sizes: list[int]  # by tag
    messages: list[tuple[int, int, int]]  # source, destination, tag; in the order of sending
    named: list[bool]  # by message: whether a receive names its source
    style: str
    seed: int


@st.composite
def plans(draw: Any, world: int) -> Plan:
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    ranks = st.integers(0, world - 1)
    message = st.tuples(ranks, ranks, st.integers(0, len(sizes) - 1))
    messages = draw(st.lists(message, max_size=24))
    named = draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    style = draw(st.sampled_from(["sends first", "receives first", "mixed"]))
    return Plan(sizes, messages, named, style, draw(st.integers(0, 2**16)))


def receives_of(plan: Plan, rank: int, dice: random.Random) -> list[tuple[int | None, int]]:
    """A rank's receives, as (source, tag): those of a tag that name a source first, or others would take theirs."""
    mine = [(m, named) for m, named in zip(plan.messages, plan.named, strict=True) if m[1] == rank]
    by_tag: dict[int, list[tuple[int | None, int]]] = {}
    for only_named in (True, False):
        some = [(m[0] if named else None, m[2]) for m, named in mine if named == only_named]
        dice.shuffle(some)
        for receive in some:
            by_tag.setdefault(receive[1], []).append(receive)
    order = []
    while by_tag:
        tag = dice.choice(sorted(by_tag))
        order.append(by_tag[tag].pop(0))
        if not by_tag[tag]:
            del by_tag[tag]
    return order


def act(comm: Any, plan: Plan) -> list[tuple[int | None, int, int, int]]:
    """Carries a plan out on one rank; what each receive got: asked source, tag, source, message."""
    dice = random.Random(f"{plan.seed}/{comm.rank}")
    new = [np.empty, ringreduce.empty]
    sends = [(i, m[1], m[2]) for i, m in enumerate(plan.messages) if m[0] == comm.rank]
    receives = receives_of(plan, comm.rank, dice)
    steps = ["send"] * len(sends) + ["receive"] * len(receives)
    if plan.style == "receives first":
        steps.reverse()
    elif plan.style == "mixed":
        dice.shuffle(steps)
    got: list[Any] = []
    works = []
    for step in steps:
        if step == "send":
            number, dest, tag = sends.pop(0)
            x = dice.choice(new)(plan.sizes[tag], "int16")
            x[:] = number
            wait = plan.style == "receives first" and dice.random() < 0.5  # whoever receives it is there
            work = comm.send(x, dest, tag=tag, async_op=not wait)
            works += [work] if work else []
        else:
            source, tag = receives.pop(0)
            x = dice.choice(new)(plan.sizes[tag], "int16")
            wait = plan.style == "sends first" and dice.random() < 0.5
            work = None if wait else comm.recv(x, source, tag=tag, async_op=True)
            if wait:
                answer = comm.recv(x, source, tag=tag)
                came_from = answer[1] if source is None else source
            got.append((source, tag, work if work else came_from, x))
    works += [work for _, _, work, _ in got if isinstance(work, ringreduce.Work)]
    dice.shuffle(works)
    for work in works:
        work.wait(30)
    result = []
    for source, tag, came, x in got:
        assert (x == x[:1]).all()
        came_from = came.source if isinstance(came, ringreduce.Work) else came
        result.append((source, tag, came_from, int(x[0]) if len(x) else -1))
    return result


def follows_the_rule(plan: Plan, rank: int, got: list[tuple[int | None, int, int, int]]) -> None:
    """Each message arrived once, where it was asked for, and none overtook another of its source and tag.

    That is all there is to check: had the messages arrived in the order of the receives that got them, each
    would have found its own to be the earliest that it fits.
    """
    queues: dict[tuple[int, int], list[int]] = {}
    for i, (source, dest, tag) in enumerate(plan.messages):
        if dest == rank:
            queues.setdefault((source, tag), []).append(i)
    for asked, tag, source, message in got:
        assert asked in (None, source)
        expected = queues[source, tag].pop(0)
        empty = plan.sizes[tag] == 0
        assert message == (-1 if empty else expected), f"rank {rank}: message {message}, not {expected}"
    assert not any(queues.values())


def on_one_rank(comm: Any, several: list[Plan]) -> None:
    for plan in several:
        follows_the_rule(plan, comm.rank, act(comm, plan))
        comm.barrier()


@pytest.mark.parametrize("world", [1, 2, 3, *slowly(4)])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_plans_of_threads(world, data):
    on_threads(world, on_one_rank, data.draw(st.lists(plans(world), min_size=1, max_size=3)))


@pytest.mark.parametrize("world", [*slowly(2), 3])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_plans_of_processes(world, data):
    on_processes(world, on_one_rank, data.draw(st.lists(plans(world), min_size=4, max_size=8)))


def test_the_model_refuses_what_breaks_the_rule():
    plan = Plan([1], [(1, 0, 0), (1, 0, 0)], [False, False], "mixed", 0)
    follows_the_rule(plan, 0, [(None, 0, 1, 0), (None, 0, 1, 1)])
    for wrong in (
        [(None, 0, 1, 1), (None, 0, 1, 0)],  # overtaking
        [(None, 0, 1, 0)],  # one is missing
        [(None, 0, 1, 0), (None, 0, 1, 0)],  # one came twice
        [(2, 0, 1, 0), (None, 0, 1, 1)],  # from another source than asked for
        [(None, 0, 2, 0), (None, 0, 1, 1)],  # the source is wrong
    ):
        with pytest.raises((AssertionError, KeyError)):
            follows_the_rule(plan, 0, wrong)
