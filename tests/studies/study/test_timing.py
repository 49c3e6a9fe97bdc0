"""Common starts, clocks of several hosts, and warm-up."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pydantic")

import ringreduce
from ringreduce.bench.ours import ours
from ringreduce.bench.problem import Problem
from ringreduce.bench.protocol import Buffers
from ringreduce.communicator.clocks import Clock
from ringreduce.studies.measuring.common_start import Start
from ringreduce.studies.measuring.timing import Figure, WrongResult, measure, warmup
from tests.conftest import on_threads
from tests.processes import metronome


def test_ranks_of_a_host_share_a_clock():
    def on_rank(comm):
        clock = Clock(comm)
        assert clock.shared(1.5) == clock.local(1.5) == 1.5
        return clock.how()

    assert set(on_threads(3, on_rank)) == {"all ranks read one monotonic clock"}


def test_clocks_of_other_hosts_are_aligned_with_rank_0():
    """Ranks 2 and 3 have a clock that is a minute off, and runs away by half a millisecond a second."""
    together = threading.Barrier(4)

    def on_rank(comm):
        begin = time.perf_counter()

        def far():
            now = time.perf_counter()
            return now + 60 + 5e-4 * (now - begin)

        read = time.perf_counter if comm.rank < 2 else far
        clock = Clock(comm, read, "here" if comm.rank < 2 else "there")
        errors = []
        for _ in range(50):
            together.wait()
            before, shown, after = time.perf_counter(), clock.shared(read()), time.perf_counter()
            errors.append(max(before - shown, shown - after, 0))
            local = read()
            assert clock.local(clock.shared(local)) == pytest.approx(local, abs=1e-9)
            time.sleep(0.002)
        return float(np.median(errors)), clock.how()

    found = on_threads(4, on_rank)
    assert [error for error, _ in found[:2]] == [0, 0]
    assert max(error for error, _ in found) < 2e-3  # of a minute; a busy machine's exchanges take long
    assert found[0][1].startswith("2 clocks")


@pytest.mark.parametrize("world", [2, 5])
def test_all_ranks_begin_at_one_instant_although_one_is_late(world):
    def on_rank(comm):
        start = Start(comm, Clock(comm))
        start.slack = 0.02
        times = []
        for turn in range(30):
            if comm.rank == turn % comm.size:
                time.sleep(0.002)
            ready = time.perf_counter()
            at, _ = start.agree()
            times.append((ready, at, start.wait(at)))
        return times

    with metronome:
        found = np.array(ringreduce.run(on_rank, world))
    ready, agreed, began = np.moveaxis(found, 2, 0)
    assert (agreed == agreed[0]).all()
    assert (began >= agreed).all()
    assert (agreed > ready.max(axis=0)).all()
    assert np.median(began[0] - agreed[0]) < 0.01 + metronome.latest  # other processes may have the cores


def test_an_instant_is_as_far_ahead_as_ranks_mostly_need():
    def on_rank(comm):
        start = Start(comm, Clock(comm))
        start.learn(np.array([*[1e-3] * 19, 9.0]))  # once, another process had the core
        return start.slack

    assert on_threads(1, on_rank)[0] == pytest.approx(1.5e-3)


def test_lateness_is_that_of_ranks_that_could_begin():
    def on_rank(comm):
        start = Start(comm, Clock(comm))
        start.first = [([0, 1, 2, 3], 2)]
        return start.lateness(np.array([[0.0, 3], [9, 1], [1, 2], [8, 8]])).tolist()

    assert on_threads(1, on_rank)[0] == [1, 2]


def test_warm_up_is_found_where_it_is():
    random = np.random.default_rng(1)
    found = {"slow first": [], "steady": [], "with an outlier": []}
    for _ in range(50):
        steady = random.lognormal(0, 0.05, 100)
        spiked = steady.copy()
        spiked[60] = 1000
        slow = np.concatenate([np.linspace(3, 1.2, 23), np.ones(77)]) * steady
        for name, times in zip(found, (slow, steady, spiked), strict=True):
            found[name].append(warmup(times))
    assert min(found["slow first"]) >= 20
    assert np.median(found["slow first"]) <= 30
    assert np.median(found["steady"]) <= 10
    assert np.median(found["with an outlier"]) <= 10
    assert warmup(steady[:9]) == 0


def test_a_figure_keeps_its_outliers():
    row = Figure(np.array([*[1e-6, 1.1e-6, 1.2e-6] * 10, 5e-5]), 5, 2).row()
    assert (row["outliers_us"], row["max_us"], row["iterations"]) == ("50", 50, 31)
    assert (row["time_us"], row["warmup"], row["late"]) == (1.1, 5, 2)


def test_a_figure_is_the_same_on_all_ranks_and_contains_what_the_call_does():
    def on_rank(comm):
        library = ours(comm, "ring")
        prepare = library.prepare

        def slowed(problem, buffer):
            call, result = prepare(problem, buffer)

            def slow():
                call()
                time.sleep(0.02 if comm.rank == 1 else 0)

            return slow, result

        library.prepare = slowed
        buffers = Buffers(library, Problem("all_reduce", 1024))
        figures = measure([library, ours(comm, "ring")], buffers, Start(comm, Clock(comm)), 0.05)
        return [figure.row() for figure in figures]

    rows = ringreduce.run(on_rank, 3)
    assert rows[0] == rows[1] == rows[2]
    slow, fast = rows[0]
    assert slow["time_us"] > 20_000
    assert fast["time_us"] < slow["time_us"]
    assert slow["iterations"] + slow["warmup"] + slow["late"] >= 10


def test_a_wrong_result_is_no_figure_and_a_refusal_is_an_answer():
    def on_rank(comm):
        wrong, right, none = (ours(comm, name) for name in ("ring", "ring", "rong"))
        wrong.prepare = lambda problem, buffer: (lambda: None, buffer)
        buffers = Buffers(right, Problem("all_reduce", 1024))
        return measure([wrong, right, none], buffers, Start(comm, Clock(comm)), 0.01)

    wrong, right, none = ringreduce.run(on_rank, 2)[0]
    assert isinstance(wrong, WrongResult)
    assert "wrong elements" in str(wrong)
    assert right.seconds.size
    assert "rong" in str(none)


def test_buffers_take_turns_and_each_was_written_before_the_others_were_used():
    """So that caches have lost it."""

    def on_rank(comm):
        library, done = ours(comm, "ring"), []
        prepare, rewrite = library.prepare, Buffers.rewrite

        def noted(problem, buffer):
            call, result = prepare(problem, buffer)
            return lambda: (done.append(("call", buffer.ctypes.data)), call()), result

        class Noting(Buffers):
            def rewrite(self, batch, iteration):
                done.append(("write", self.arrays[iteration % self.turns].ctypes.data))
                rewrite(self, batch, iteration)

        library.prepare = noted
        (figure,) = measure(
            [library], Noting(library, Problem("all_reduce", 1 << 20), 3), Start(comm, Clock(comm)), 0.0
        )
        return figure, done

    for figure, done in ringreduce.run(on_rank, 2):
        assert not isinstance(figure, Exception), figure  # no result is wrong
        calls = [number for number, (what, _) in enumerate(done) if what == "call"]
        assert len({done[number][1] for number in calls[:3]}) == 3
        for number in calls[2:10]:  # of the first turn
            written = max(at for at in range(number) if done[at] == ("write", done[number][1]))
            assert sum(written < call < number for call in calls) == 2
