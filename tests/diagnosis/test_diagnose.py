"""`ringreduce diagnose`: real ranks that hang in all ways, and what it says of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce import cli
from ringreduce.diagnosis import ranks as seen
from ringreduce.diagnosis import stacks
from tests.faults.ranks import Ranks

PATIENCE = 200.0


def load_next_batch():
    time.sleep(3600)


def loop_for_ever():
    while True:
        pass


def _hang(comm, board, late, how):
    x = np.ones(6, "float32")
    comm.all_reduce(np.ones(2, "int64"), algorithm="ring")
    board.note(comm.rank)
    if comm.rank == late:
        how()
    comm.all_reduce(x, algorithm="one_shot")


@contextlib.contextmanager
def job(function, count, *args):
    """Ranks that hang, until the block ends."""
    started = Ranks(function, count, *args)
    try:
        started.wait_for()
        yield started
    finally:
        for rank, process in enumerate(started.processes):
            if process.is_alive():
                started.kill(rank)
        with contextlib.suppress(AssertionError):
            started.outcomes(10)


def said(capsys, pid, *more):
    """What the command says of a process's job, and its exit status."""
    status = cli.main(["diagnose", "--pid", str(pid), "--longer-than", "0.2", *more])
    return capsys.readouterr().out, status


def say_until(capsys, pid, *parts, more=()):
    """Repeats the command until it says all of this: ranks need time to begin to wait."""
    until = time.monotonic() + PATIENCE
    while True:
        text, status = said(capsys, pid, *more)
        if all(part in text for part in parts):
            return text, status
        assert time.monotonic() < until, text
        time.sleep(0.1)


CALL = "called #2, all_reduce(float32[6], sum) by one_shot"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("how", "where"), [(load_next_batch, "load_next_batch"), (loop_for_ever, "loop_for_ever")]
)
def test_a_rank_that_does_not_call(capsys, monkeypatch, transport, how, where):
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", transport)
    with job(_hang, 4, 2, how) as ranks:
        pid = ranks.processes[0].pid
        text, status = say_until(capsys, pid, "ranks 0, 1 and 3 wait for it")
        assert status == 3
        sentence = next(line for line in text.splitlines() if "wait for it" in line)
        assert sentence.strip().startswith(f"rank 2 has not {CALL}, and is in {where} at test_diagnose.py:")
        assert text.startswith("a job of 4 ranks; 4 of its processes are known: ")


def test_a_stopped_rank(capsys):
    with job(_hang, 3, 1, load_next_batch) as ranks:
        pid = ranks.processes[1].pid
        os.kill(pid, signal.SIGSTOP)
        text, _ = say_until(capsys, pid, "ranks 0 and 2 wait for it")
        assert f"rank 1 has not {CALL}, and is stopped (by a signal)" in text
        assert seen.look_at(pid).state == "T"
        os.kill(pid, signal.SIGCONT)


def test_a_rank_that_is_stopped_in_the_call(capsys):
    with job(_hang, 3, 1, load_next_batch) as ranks:
        pid = ranks.processes[0].pid
        say_until(capsys, pid, "ranks 0 and 2 wait for it")
        os.kill(pid, signal.SIGSTOP)
        text, _ = say_until(capsys, pid, "rank 2 waits for it", "rank 1 has not")
        assert "ranks 0 and 2 wait" not in text
        os.kill(pid, signal.SIGCONT)


def _leave_unnoticed(comm, board, other):
    comm.barrier()
    board.note(comm.rank)
    if comm.rank == 1:
        os._exit(3)
    try:
        comm.barrier()
    except ringreduce.PeerLost:
        board.note(comm.rank, 1)
        load_next_batch()


def test_a_rank_that_has_died(capsys):
    with job(_leave_unnoticed, 3, None) as ranks:
        pid = ranks.processes[0].pid
        ranks.wait_until_all(lambda rank: rank == 1 or ranks.board.read(rank, 1) != 0)
        text, _ = say_until(capsys, pid, "has failed on rank 0: ")
        assert "a job of 3 ranks; 2 of its processes are known" in text
        assert "rank 1 died, whose last known call is #1, barrier()" in text


def _wrong_order(comm, board, _):
    first, second = comm.split(0), comm.split(0)
    if comm.rank == 1:
        first, second = second, first
    board.note(comm.rank)
    first.all_reduce(np.ones(3, "float32"), algorithm="one_shot")
    second.all_reduce(np.ones(3, "float32"), algorithm="one_shot")


def test_a_deadlock_by_order(capsys):
    with job(_wrong_order, 2, None) as ranks:
        text, status = say_until(
            capsys, ranks.processes[0].pid, "deadlock: ranks 0 and 1 wait for each other"
        )
        call = "#1, all_reduce(float32[3], sum) by one_shot"
        for missing in (0, 1):
            line = next(line for line in text.splitlines() if f"rank {missing} has not called {call}" in line)
            assert f"and waits in {call} of the group of ranks 0 and 1" in line
            assert f"rank {1 - missing} waits for it" in line
        assert status == 3


def _miss_a_message(comm, board, _):
    comm.barrier()
    board.note(comm.rank)
    if comm.rank == 0:
        comm.recv(np.ones(3, "float32"), 1, tag=7)
    else:
        load_next_batch()


def test_a_message_that_is_not_sent(capsys):
    with job(_miss_a_message, 2, None) as ranks:
        text, _ = say_until(
            capsys, ranks.processes[1].pid, "for recv(float32[3], tag 7) by rank 0 from rank 1"
        )
        assert "rank 1: and is in load_next_batch at test_diagnose.py:" in text


def _work(comm, board, _):
    comm.barrier()
    board.note(comm.rank)
    until = time.monotonic() + 3600
    while time.monotonic() < until:
        comm.all_reduce(np.ones(3, "float32"))


def test_a_job_that_runs_holds_nobody_up(capsys):
    with job(_work, 2, None) as ranks:
        text, status = said(capsys, ranks.processes[0].pid, "--longer-than", "20")
        assert "no rank has waited for 20 s or longer" in text and status == 0


def test_hosts_are_combined(capsys, tmp_path):
    """The ranks of one job, as if they had been found on two hosts."""
    with job(_hang, 3, 2, load_next_batch) as ranks:
        pid = ranks.processes[0].pid
        say_until(capsys, pid, "ranks 0 and 1 wait for it")
        assert cli.main(["diagnose", "--pid", str(pid), "--save", str(tmp_path / "all.json")]) == 0
    everybody = json.loads((tmp_path / "all.json").read_text())
    for name, members in (("a", [0]), ("b", [1, 2])):
        part = [one for one in everybody if one["groups"][0]["rank"] in members]
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    capsys.readouterr()
    paths = [str(tmp_path / f"{name}.json") for name in ("a", "b")]
    assert cli.main(["diagnose", "--longer-than", "0.2", "--all", *paths]) == 3
    text = capsys.readouterr().out
    assert f"rank 2 has not {CALL}, and is in load_next_batch" in text
    assert "rank 2: process " in text and "thread MainThread" in text
    # Of one host alone, what the others do is not known.
    assert cli.main(["diagnose", "--longer-than", "0.2", paths[0]]) == 3
    assert "its process has ended" in capsys.readouterr().out
    for one in everybody:
        one["groups"][0]["hosts"] = [0, 1, 1]
    (tmp_path / "a.json").write_text(json.dumps([one for one in everybody if one["groups"][0]["rank"] == 0]))
    assert cli.main(["diagnose", "--longer-than", "0.2", paths[0]]) == 3
    assert "runs on another host: run `ringreduce diagnose` there, too" in capsys.readouterr().out
    # A rank that has closed this group is not gone.
    for one in everybody:
        one["groups"].append({**one["groups"][0], "key": "another", "begun": 0, "ended": 0, "wait": None})
    everybody[[one["groups"][0]["rank"] for one in everybody].index(2)]["groups"].pop(0)
    (tmp_path / "all.json").write_text(json.dumps(everybody))
    assert cli.main(["diagnose", "--longer-than", "0.2", str(tmp_path / "all.json")]) == 3
    assert (
        f"rank 2 has not {CALL}, and has left the group; ranks 0 and 1 wait for it" in capsys.readouterr().out
    )


def test_what_it_refuses(capsys, tmp_path):
    assert cli.main(["diagnose", "--pid", str(os.getpid()), "--longer-than", "-1"]) == 2
    assert cli.main(["diagnose", "--pid", "1"]) == 2
    assert "process 1 is in no group" in capsys.readouterr().err
    (tmp_path / "wrong.json").write_text('[{"pid": 3}]')
    assert cli.main(["diagnose", str(tmp_path / "wrong.json")]) == 2
    assert "is not a file that ringreduce diagnose --save wrote" in capsys.readouterr().err


def test_nothing_is_shown_without_a_group():
    comm = ringreduce.local_group(1)[0]
    assert [
        group.size for group in seen.look_at(os.getpid()).groups if group.key == comm.statistics().group
    ] == [1]
    before = len(os.listdir("/proc/self/fd"))
    groups = [ringreduce.local_group(2) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before  # one for all groups
    for group in groups:
        for one in group:
            one.close()
    comm.close()


def test_the_stack_of_a_process_that_answers(monkeypatch):
    def answers(comm, board, _):
        ringreduce.diagnosis.start(comm.rank, report="answer")
        board.note(comm.rank)
        load_next_batch()

    with job(answers, 1, None) as ranks:
        pid = ranks.processes[0].pid
        monkeypatch.setattr(stacks, "py_spy", lambda: None)
        until = time.monotonic() + PATIENCE
        while not (found := stacks.of(pid)[0]):
            assert time.monotonic() < until
        assert found[0].name == "MainThread" and found[0].frames[0].function.endswith("load_next_batch")
        assert stacks.where(found).startswith("load_next_batch at test_diagnose.py:")
        os.kill(pid, signal.SIGSTOP)
        while seen.look_at(pid).state != "T":
            assert time.monotonic() < until
        monkeypatch.setattr(stacks, "PATIENCE", 0.3)
        threads, reason = stacks.of(pid)
        assert not threads and "py-spy is not installed" in reason
        os.kill(pid, signal.SIGCONT)
    assert stacks.asked(pid) == []


def test_own_threads():
    over = threading.Event()
    threading.Thread(target=over.wait, name="waits", daemon=True).start()
    names = {thread.name for thread in stacks.here()}
    over.set()
    assert "waits" in names and threading.current_thread().name not in names
