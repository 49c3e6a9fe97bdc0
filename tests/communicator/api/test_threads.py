"""Ranks that are threads of one process, beside other groups of such ranks, and beside threads that only look.

Under CPython without the GIL (`make test-freethreaded`) they run at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringreduce
from ringreduce import diagnosis, environment
from ringreduce.living import Living
from ringreduce.schedules import registry
from tests.conftest import on_group

GROUPS, ROUNDS = 3, 6
SIZES = [1, 9, 1000, 16_384, 200_003]


def at_the_same_time(*functions: Callable[[], Any]) -> list[Any]:
    """Runs each function in a thread of its own; raises the first exception in time."""
    together = threading.Barrier(len(functions))

    def begin(function: Callable[[], Any]) -> Any:
        together.wait()
        return function()

    return on_group(list(functions), begin)


def work_of_rank(comm: Any, round: int) -> None:
    """Calls of all kinds, whose results are known."""
    total = sum(range(1, comm.size + 1))
    for size in SIZES:
        x = np.full(size, comm.rank + 1, np.float32)
        assert (comm.all_reduce(x.copy()) == total).all()
        assert (comm.all_reduce(x.copy(), algorithm="ring", async_op=True).wait() == total).all()
    strided = np.full((7, 5), comm.rank + 1.0)[:, ::2]
    assert (comm.all_reduce(strided, async_op=True).wait() == total).all()
    assert comm.all_gather(np.array([comm.rank] * (comm.rank + 1)), counts=[1, 2]).tolist() == [0, 1, 1]
    assert comm.all_gather_object((comm.rank, round)) == [(rank, round) for rank in range(comm.size)]
    peer = 1 - comm.rank
    answer = np.empty(3, int)
    sent = comm.send(np.full(3, comm.rank), peer, async_op=True)
    assert (comm.recv(answer, peer) == peer).all()
    sent.wait()
    child = comm.split(0, -comm.rank)
    assert child.rank == peer and child.all_reduce(np.ones(2)).tolist() == [2, 2]
    child.close()


def groups_come_and_go() -> None:
    for round in range(ROUNDS):
        comms = ringreduce.local_group(2, timeout=60)
        on_group(comms, work_of_rank, round)
        if round % 2:  # the others end with their last reference
            for comm in comms:
                comm.close()


def until(over: threading.Event, look: Callable[[], object]) -> Callable[[], int]:
    def function() -> int:
        looks = 0
        while not over.is_set() or not looks:
            look()
            looks += 1
        return looks

    return function


def test_groups_beside_each_other_and_threads_that_look():
    over = threading.Event()
    kept = ringreduce.local_group(2)

    def come_and_go() -> None:
        try:
            groups_come_and_go()
        finally:
            over.set()

    def explain() -> None:
        assert kept[0].explain(1 << 20).algorithm in {one.name for one in ringreduce.algorithms("all_reduce")}

    def count() -> None:
        diagnosis.statistics()
        assert kept[0].statistics().size == 2 and kept[1].memory_held > 0 and kept[1].links is None

    def read_environment() -> None:
        environment.check(os.environ)
        environment.complaints(os.environ)

    lookers = [until(over, look) for look in (explain, count, read_environment)]
    at_the_same_time(*[come_and_go] * GROUPS, *lookers)
    on_group(kept, work_of_rank, 0)


def test_threads_that_share_a_communicator():
    """Their calls run one after another; each is of the same kind, because ranks must call them in the same order."""

    def rank_main(comm: Any) -> list[Any]:
        def calls() -> None:
            for _ in range(50):
                x = np.full(9, comm.rank + 1, np.int64)
                assert (comm.all_reduce(x) == 3).all()

        return at_the_same_time(calls, calls, calls, lambda: [comm.memory_held for _ in range(1000)])

    on_group(ringreduce.local_group(2, timeout=60), rank_main)


def test_waiters_of_one_work_return_when_its_result_is_there():
    """The result of a call with an array that is not contiguous is copied back by one of them."""

    def rank_main(comm: Any) -> None:
        for _ in range(20):
            x = np.ones((400, 400))[:, ::2]
            work = comm.all_reduce(x, async_op=True)
            for found in at_the_same_time(*[lambda work=work: int(work.wait().sum())] * 3):
                assert found == 2 * x.size

    on_group(ringreduce.local_group(2, timeout=60), rank_main)


OWN = """
import time, ringreduce

time.sleep(0.05)


def own(world, rank):
    return ringreduce.schedule("all_reduce", "ring", world, rank)
"""


def test_algorithms_are_registered_and_used_in_several_threads(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    before = list(sys.path)
    found = at_the_same_time(*[lambda: registry.load(f"{file}:own")] * 4)
    assert sys.path == before and len({one.function for one in found}) == 1  # the file has run once

    def uses_its_own(number: int) -> Callable[[], None]:
        def function() -> None:
            name = f"own {number}"
            ringreduce.register(
                name, lambda world, rank: ringreduce.schedule("all_reduce", "ring", world, rank)
            )
            results = on_group(
                ringreduce.local_group(2), lambda comm: comm.all_reduce(np.ones(4), algorithm=name).tolist()
            )
            assert results == [[2.0] * 4] * 2

        return function

    at_the_same_time(*(uses_its_own(number) for number in range(4)))


def test_an_operator_of_all_threads_tells_each_rank_what_it_raised_itself():
    both = threading.Barrier(2)

    def fails(a: Any, b: Any) -> Any:
        both.wait(30)
        raise ZeroDivisionError(threading.get_ident())

    shared = ringreduce.op(fails, commutative=True, name="shared")

    def rank_main(comm: Any) -> bool:
        with pytest.raises(ZeroDivisionError) as caught:
            comm.all_reduce(np.ones(10), shared, algorithm="one_shot")
        return caught.value.args == (threading.get_ident(),)

    assert on_group(ringreduce.local_group(2), rank_main) == [True, True]


def test_living_objects_are_found_while_others_come_and_go():
    class One:
        pass

    living: Living[One] = Living()
    kept, over = [One() for _ in range(50)], threading.Event()
    for one in kept:
        living.add(one)

    def come_and_go() -> None:
        for _ in range(3000):
            living.add(One())
        over.set()

    def look() -> None:
        assert {*kept} <= {*living} and kept[7] in living

    at_the_same_time(come_and_go, come_and_go, until(over, look))
    assert len(list(living)) == len(kept)
    living.discard(kept.pop())
    assert {*living} == {*kept}


DROPPED = """
import threading, time
import numpy as np, ringreduce

inside = threading.Event()


def slow(x, y):
    inside.set()
    time.sleep(0.2)
    return x + y


pair = ringreduce.local_group(2)
slow = ringreduce.op(slow, commutative=True, name="slow")
works = [comm.all_reduce(np.ones(3), slow, async_op=True) for comm in pair]
inside.wait()
works.clear()
pair.clear()
print("gone")
"""


def test_the_last_reference_goes_while_an_operator_runs():
    """Its thread needs Python to end, so whoever waits for it must have let go of Python."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gone\n", "")


FIRST_USE = """
import sys, threading
import numpy as np

together = threading.Barrier(6)


def first_use():
    together.wait()
    import ringreduce

    (comm,) = ringreduce.local_group(1)
    assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]


threads = [threading.Thread(target=first_use) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import ringreduce.diagnosis, ringreduce.schedules, ringreduce.start.bootstrap
print("ringreduce" in sys.modules, getattr(sys, "_is_gil_enabled", lambda: True)())
"""


def test_first_use_in_several_threads():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("True")


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python is built with the GIL"
)
def test_import_leaves_the_gil_off():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_USE], capture_output=True, text=True, timeout=200,
        env={name: value for name, value in os.environ.items() if name != "PYTHON_GIL"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True", "False"], "")
