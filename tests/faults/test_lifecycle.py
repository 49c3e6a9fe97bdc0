"""Forks, closing in all its ways, and ends of processes that nobody prepared."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import Boom, Ranks, failure_of, run

import ringreduce
from tests.conftest import on_threads, slowly
from tests.processes import free_stacks, within


def _fork(body) -> int:
    """Runs body in a forked child and returns its exit status; the child ends as a plain fork would."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            code = 0 if body() else 2
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        os._exit(code)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def _use_in_child(comm, board):
    x = ringreduce.zeros(1000)
    comm.all_reduce(x, async_op=True).wait()  # the progress thread runs

    def child():
        for call in (
            lambda: comm.all_reduce(np.ones(3, "float32")),
            lambda: comm.all_reduce(np.ones(3, "float32"), async_op=True),
            lambda: comm.send(np.ones(3, "float32"), 1 - comm.rank),
            lambda: comm.split(0),
            comm.shrink,
            comm.barrier,
        ):
            with pytest.raises(ringreduce.ClosedError):
                call()
        comm.close()
        assert ringreduce.empty(10).size == 10
        assert ringreduce.run(lambda c: float(c.all_reduce(np.ones(1, "float32"))[0]), 2) == [2.0, 2.0]
        return True

    assert _fork(child) == 0
    comm.all_reduce(x)
    pending = comm.all_reduce(x, async_op=True)
    assert _fork(lambda: True) == 0
    pending.wait()
    return float(comm.all_reduce(np.ones(5, "float32"))[0])


def test_fork_after_init():
    assert run(_use_in_child, 2) == [2.0, 2.0]


def _collect_in_child(comm, board, are_stacks_freed):
    mine = comm.split(0)
    work = mine.all_reduce(np.ones(4, "float32"), async_op=True)
    work.wait()
    holder = [mine, work]

    def child():
        if are_stacks_freed:
            free_stacks()
        holder.clear()
        nonlocal mine, work
        del mine, work
        gc.collect()
        return True

    for _ in range(5):
        assert _fork(child) == 0
    return float(holder[0].all_reduce(np.ones(5, "float32"))[0])


@pytest.mark.parametrize("are_stacks_freed", [*slowly(False, True)])
def test_child_may_drop_the_communicator(are_stacks_freed):
    assert run(_collect_in_child, 2, are_stacks_freed) == [2.0, 2.0]


def _load_data(comm, board):
    """Worker processes that only make data, as a DataLoader's do, while training goes on."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def work(i):
        results.put(np.full(3, i, "float32"))

    workers = [context.Process(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    total = 0.0
    for _ in workers:
        batch = results.get(timeout=20)
        total += float(comm.all_reduce(batch)[0])
    for worker in workers:
        worker.join(10)
        assert worker.exitcode == 0
    return total


def test_data_loading_workers():
    assert run(_load_data, 2) == [6.0, 6.0]


def _close_twice(comm, board):
    comm.barrier()
    comm.close()
    comm.close()
    for call in (comm.barrier, lambda: comm.split(0), comm.shrink, lambda: comm.barrier(async_op=True)):
        with pytest.raises(ringreduce.ClosedError):
            call()
    return True


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _signals_held_back(thread: int) -> int:
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigBlk:")).split()[1], 16)


def _look_at_threads(comm, board):
    before = _threads()
    comm.all_reduce(np.ones(3, "float32"), async_op=True).wait()
    own = _threads() - before
    return len(own), all(_signals_held_back(thread) >> (signal.SIGINT - 1) & 1 for thread in own)


def test_threads_of_the_library_take_no_signals():
    """Else Ctrl-C may go to one of them, and not end the sleep of the program's own."""
    found = run(_look_at_threads, 2)
    assert found == [(1, True)] * 2


def test_close_twice_and_use_after_close():
    assert run(_close_twice, 3) == [True] * 3


def _close_with_work(comm, board):
    x = np.ones(1 << 18, "float32")
    works = [comm.all_reduce(x, async_op=True) for _ in range(4)]
    if comm.rank == 1:
        time.sleep(0.1)
    comm.close()
    assert all(work.done() and work.exception() is None for work in works)
    return float(x[0])


def test_close_waits_for_work():
    assert run(_close_with_work, 3) == [81.0] * 3


def _leave_by_exception(comm, board):
    if comm.rank == 1:
        work = comm.all_reduce(np.ones(3, "float32"), async_op=True)  # nobody else will come to it
        assert not work.done()
        board.note(1, 3)
        raise Boom
    return failure_of(lambda: comm.recv(np.ones(1), 1))


def test_exception_while_work_is_pending():
    ranks = Ranks(_leave_by_exception, 2)
    survivor, thrower = ranks.outcomes()
    assert isinstance(thrower.error, Boom)
    error, at = survivor.value
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 1
    assert at - ranks.board.read(1, 3) < within()


def _drop(comm, board):
    mine = comm.split(0)
    mine.barrier()
    if comm.rank == 1:
        board.note(1, 3)
        del mine
        gc.collect()
        comm.barrier()
        return None
    found = failure_of(mine.barrier)
    comm.barrier()
    return found


def test_garbage_collected_without_close():
    ranks = Ranks(_drop, 2)
    survivor, dropper = ranks.outcomes()
    assert dropper.error is None
    error, at = survivor.value
    assert isinstance(error, ringreduce.PeerLost) and error.rank == 1
    assert at - ranks.board.read(1, 3) < within()


def _close_at_once(comm, board, rounds):
    for i in range(rounds):
        group = comm.split(0)
        group.all_reduce(np.ones(1 + i * 997 % 5000, "float32"))
        group.close()
    return True


@pytest.mark.parametrize("count", [2, 4])
def test_a_clean_close_is_no_loss(count):
    """One rank leaves while the others still finish the last call."""
    assert run(_close_at_once, count, 60) == [True] * count


def _only_once(comm, board, kind):
    x = np.ones(1 << 16, "float32")
    if kind == "broadcast":
        comm.broadcast(x, 0)
    elif kind == "send":
        comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0) if comm.rank == 1 else None
    else:
        comm.all_reduce(x, algorithm=kind)
    return True


@pytest.mark.parametrize("kind", ["send", "tree", *slowly("broadcast", "ring")])
def test_short_runs_end_well(kind):
    for _ in range(8):
        assert run(_only_once, 3, kind) == [True] * 3


SCRIPT = """
import os, sys
import numpy as np, ringreduce
comm = ringreduce.init(int(sys.argv[1]), 2, sys.argv[2], timeout=20)
x = np.ones(100000, "float32")
comm.all_reduce(x)
{end}
"""

ENDS = {
    "without close": ("", "", 0),
    "with work under way": ("w = comm.all_reduce(x, async_op=True)", "comm.all_reduce(x)", 0),
    "with forgotten work": ("comm.all_reduce(x, async_op=True)", "comm.all_reduce(x)", 0),
    "by an exception with work under way": (
        "w = comm.all_reduce(x, async_op=True); w2 = comm.all_reduce(x, async_op=True); 1 / 0",
        "comm.recv(x, 0)",
        1,
    ),
    "by sys.exit": ("sys.exit(3)", "", 3),
    "in a thread": (
        "import threading; threading.Thread(target=lambda: comm.all_reduce(x)).start()",
        "comm.all_reduce(x)",
        0,
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_interpreter_exit(how):
    first, second, code = ENDS[how]
    name = f"exit/{os.getpid()}/{how}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT.format(end=end)), str(rank), name],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, end in enumerate((first, second))
    ]
    texts = [process.communicate(timeout=200)[1] for process in processes]
    assert processes[0].returncode == code, texts[0]
    if code == 1:
        assert "ZeroDivisionError" in texts[0]
        assert "PeerLost" in texts[1]
    else:
        assert texts == ["", ""]
        assert processes[1].returncode == 0


@pytest.mark.parametrize("world", [2, 4, 6])
def test_what_a_closed_rank_had_lent_is_not_taken_for_its_values(world):
    """Another thread closes a rank's communicator in a call, and the rank then changes its array."""
    arrays = [np.full(20_000, rank, "float32") for rank in range(world)]
    changed = threading.Event()

    def rank_main(comm):
        x = arrays[comm.rank]
        if comm.rank == 0:
            timer = threading.Timer(0.05, comm.close)
            timer.start()
            with pytest.raises(ringreduce.ClosedError):
                comm.all_reduce(x, "max")
            x[:] = 1e9
            changed.set()
            timer.join()
        else:
            changed.wait()
            with pytest.raises(ringreduce.PeerLost) as lost:
                comm.all_reduce(x, "max")
            assert lost.value.rank == 0

    on_threads(world, rank_main)


def test_who_leaves_a_background_call_unfinished_fails_only_those_that_wait_for_it():
    comms = ringreduce.local_group(3)
    comms[1].all_gather(np.ones(2, "float32"), async_op=True)  # the others never call it
    while not comms[1].statistics().calls:
        time.sleep(0.001)
    comms[1] = None
    gc.collect()
    x = np.arange(3, dtype="float32")
    sent = comms[0].send(x, 2, async_op=True)
    assert np.array_equal(comms[2].recv(np.empty_like(x), 0), x)
    sent.wait()
