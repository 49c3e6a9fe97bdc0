"""What RINGREDUCE_LOG, and Python's logging, let the library say of itself."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
import uuid

import pytest

import ringreduce
from ringreduce import environment, log
from ringreduce.start.rendezvous import gathering
from tests.conftest import slowly

CALLS = """
import ringreduce, numpy
comm = ringreduce.init()
comm.all_reduce(numpy.ones(4, "float32"))
comm.close()
"""


def start(program: str, count: int = 2, **own: str) -> list[subprocess.Popen[str]]:
    """As torchrun starts ranks. ``{rank}`` in a variable's value stands for the rank."""
    job = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "LOCAL_WORLD_SIZE": str(count),
    }
    job["TORCHELASTIC_RUN_ID"] = uuid.uuid4().hex
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | job | {"RANK": str(rank)} | {name: text.format(rank=rank) for name, text in own.items()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip


def said(program: str, count: int = 2, **variables: str) -> list[str]:
    """What each rank writes to stderr."""
    ranks = start(program, count, **variables)
    outcomes = [rank.communicate(timeout=200) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outcomes
    return [errors for _, errors in outcomes]


def test_nothing_is_said_unasked():
    assert said(CALLS) == ["", ""]


def test_rank_0_says_what_was_chosen():
    first, second = said(CALLS, RINGREDUCE_LOG="info")
    assert all(line.startswith("ringreduce[rank 0] info: ") for line in first.splitlines()), first
    assert "info: 2 ranks, started by torchrun, meet at torchrun/" in first
    assert "info: a group of 2 ranks over shm on one host" in first
    assert re.search(r"reductions use \w+; algorithms are chosen from the shipped tables$", first, re.M)
    assert re.search(r"info: .*\ball_reduce: \w+ up to \d+ ([KM]i)?B, ", first)
    assert first.endswith("the group is closed\n")
    assert second == ""


def test_debug_lets_every_rank_say_it():
    for rank, text in enumerate(said(CALLS, RINGREDUCE_LOG="debug")):
        level = "debug" if rank else "info"
        assert f"ringreduce[rank {rank}] info: a group of 2 ranks over shm" in text
        assert text.endswith(f"ringreduce[rank {rank}] {level}: the group is closed\n")


UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def test_algorithms_are_those_of_explain(capfd, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_LOG", "info")
    with ringreduce.local_group(4)[0] as comm:
        lines = capfd.readouterr().err.splitlines()
        ranges = next(line for line in lines if "all_reduce: " in line or "all_reduce, " in line).rpartition(
            ": "
        )[2]
        *bounded, (last, _) = [item.split(" ", 1) for item in ranges.split(", ")]
        assert bounded
        before = 0
        for algorithm, limit in bounded:
            number, unit = limit.removeprefix("up to ").split()
            nbytes = int(number) * UNITS[unit]
            assert {comm.explain(size).algorithm for size in (before + 1, nbytes)} == {algorithm}
            before = nbytes
        assert {comm.explain(size).algorithm for size in (before + 1, 1 << 40)} == {last}


@pytest.mark.parametrize(
    ("messages", "variables"),
    [
        ("are plain", {}),
        ("carry checksums", {"RINGREDUCE_TCP_CHECK": "1"}),
        ("are encrypted by TLS", {"RINGREDUCE_TLS": "1", "RINGREDUCE_SECRET": "a secret of ours"}),
    ],
)
def test_the_network_is_named(messages, variables):
    first, second = said(
        CALLS, RINGREDUCE_LOG="info", RINGREDUCE_TRANSPORT="tcp", RINGREDUCE_IFACE="lo", **variables
    )
    assert re.search(rf"info: listens on 127\.0\.0\.1:\d+ \(lo\).*; messages {messages}\n", first)
    assert "over tcp" in first
    assert "listens" not in second  # of the same host
    assert "a secret of ours" not in first


def test_hosts_are_told_apart():
    first, second = said(CALLS, 2, RINGREDUCE_LOG="info", RINGREDUCE_HOST="{rank}")
    assert "2 ranks over tcp on 2 hosts (ranks 0; 1)" in first
    assert "listens on" in second


def test_a_table_and_its_file_are_named(tmp_path):
    table = tmp_path / "mine.tuning"
    table.write_text("all_reduce shm 4 -1 999 ring 65536 1\n")
    text = said(CALLS, RINGREDUCE_LOG="info", RINGREDUCE_TUNING=str(table), RINGREDUCE_REPRODUCIBLE="0")[0]
    assert f"algorithms are chosen from {table}, then from the shipped tables" in text
    assert "all_reduce: ring up to 999 B, " in text


def test_reproducible_is_said():
    assert "on one host, reproducible\n" in said(CALLS, RINGREDUCE_LOG="info", RINGREDUCE_REPRODUCIBLE="1")[
        0
    ].replace(", with more ranks than cores", "")


def test_groups_say_from_which_they_were_made():
    program = CALLS.replace("comm.close()", "part = comm.split(0, -comm.rank); part.close(); comm.close()")
    for rank, text in enumerate(said(program, RINGREDUCE_LOG="info")):
        for line in ("a group of 2 ranks", "the group is closed"):
            assert (f"[rank {rank}/0] info: {line}" in text) == (rank == 1)


LATE = """
import ringreduce, numpy, time
comm = ringreduce.init()
time.sleep(2.5 * comm.rank)
x = comm.all_reduce(numpy.ones(4, "float32"), async_op=%s)
"""


@pytest.mark.parametrize("transport", ["shm", *slowly("tcp")])
@pytest.mark.parametrize("ending", ["False", *slowly("True).wait(")])
def test_a_long_wait_names_whom_it_is_for(transport, ending):
    first, second = said(LATE % ending, RINGREDUCE_LOG="debug", RINGREDUCE_TRANSPORT=transport)
    waits = re.findall(r"debug: has waited \d s for rank 1 in (.*); rank 1 has not started it", first)
    assert 1 <= len(waits) <= 3, first  # after a second, and whenever it has doubled since
    assert all(call.startswith("call #1, all_reduce(float32[4], sum)") for call in waits)
    assert "has waited" not in second
    assert "has waited" not in said(LATE % ending, RINGREDUCE_LOG="info", RINGREDUCE_TRANSPORT=transport)[0]


def test_a_long_wait_for_a_message_names_whom_it_is_for():
    program = LATE.partition("x =")[0] + (
        "x = numpy.ones(3)\ncomm.recv(x, 1, tag=5) if comm.rank == 0 else comm.send(x, 0, tag=5)\n"
    )
    first = said(program, RINGREDUCE_LOG="debug")[0]
    assert re.search(r"debug: has waited \d s for rank 1 in recv\(float64\[3\], tag 5\)", first), first


def test_a_failure_is_said_once():
    program = CALLS.replace(
        "comm.all_reduce(",
        """
import os, contextlib
if comm.rank == 1: os._exit(0)
for _ in range(3):
    with contextlib.suppress(ringreduce.PeerLost): comm.barrier()
x = (""",
    )
    first, _ = said(program, RINGREDUCE_LOG="info")
    assert first.count("the group failed: rank 1 died") == 1, first
    assert first.count("failed") == 1


def test_a_wrong_level_is_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_LOG", "loud")
    for make in (ringreduce.init, lambda: ringreduce.local_group(2)):
        with pytest.raises(ValueError, match="RINGREDUCE_LOG must be info or debug, not 'loud'"):
            make()


# --- while ranks meet ------------------------------------------------------------------------------------------


def three_that_meet(monkeypatch, speaker):
    """Threads of ranks that are to be started. This process says what a rank would."""
    monkeypatch.setenv("RINGREDUCE_LOG", "info")
    monkeypatch.setattr(log, "_FIRST_WORD", 0.1)
    log.begin(speaker)
    place = uuid.uuid4().hex, time.monotonic() + 30
    return [threading.Thread(target=gathering.join, args=(place[0], rank, 3, place[1])) for rank in range(3)]


def test_who_is_missing_is_said_while_they_meet(capfd, monkeypatch):
    meet = three_that_meet(monkeypatch, speaker=0)
    meet[0].start()
    wait_for_line(capfd, r"rank 0\] info: has waited \d s for ranks \[1, 2\] to start")
    meet[2].start()
    wait_for_line(capfd, r"for ranks \[1\] to start")
    meet[1].start()
    for thread in meet:
        thread.join()
    assert not [thread for thread in threading.enumerate() if thread.name == "ringreduce-log-waiting"]


def test_rank_0_that_is_missing_is_said_by_one(capfd, monkeypatch):
    meet = three_that_meet(monkeypatch, speaker=1)
    meet[1].start()
    meet[2].start()
    text = wait_for_line(capfd, r"rank 1\] info: has waited \d s for rank 0 to start")
    meet[0].start()
    for thread in meet:
        thread.join()
    assert "rank 2]" not in text


def wait_for_line(capfd, wanted: str) -> str:
    text = ""
    until = time.monotonic() + 20
    while not re.search(wanted, text):
        assert time.monotonic() < until, text
        time.sleep(0.01)
        text += capfd.readouterr().err
    return text


# --- Python's logging ------------------------------------------------------------------------------------------

CONFIGURED = """
import logging, sys, os
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
"""


def test_a_programs_own_logging_gets_the_lines():
    ranks = start(CONFIGURED + CALLS.replace("comm.close()", ""))
    (first, errors), (second, _) = [rank.communicate(timeout=200) for rank in ranks]
    assert errors == ""
    lines = first.splitlines()
    assert lines[0].startswith("ringreduce.meeting INFO rank 0: 2 ranks, started by torchrun, meet at ")
    assert lines[1].startswith("ringreduce.engine INFO rank 0: a group of 2 ranks over shm")
    assert lines[-1] == "ringreduce.engine INFO rank 0: the group is closed"  # at exit
    assert second == ""


def test_the_variable_goes_before_the_programs_logging():
    first, _ = start(CONFIGURED + CALLS, RINGREDUCE_LOG="info")
    out, errors = first.communicate(timeout=200)
    assert out == ""
    assert errors.startswith("ringreduce[rank 0] info: 2 ranks")


def test_no_thread_where_nobody_listens(caplog):
    with ringreduce.local_group(2)[0]:
        assert "ringreduce-log" not in {thread.name for thread in threading.enumerate()}
    with caplog.at_level(logging.INFO):
        with ringreduce.local_group(2)[0]:
            assert "ringreduce-log" in {thread.name for thread in threading.enumerate()}
        log.drain()
    assert "rank 0: a group of 2 ranks over local on one host" in caplog.text
    assert "rank 0: the group is closed" in caplog.text


def test_a_child_of_a_fork_logs_for_itself():
    """It has neither the parent's thread nor, perhaps, its locks."""
    program = CONFIGURED + (
        "import ringreduce\n"
        "ringreduce.local_group(2)\n"
        "child = os.fork()\n"
        "with ringreduce.local_group(3)[0]: pass\n"
        "if child: os.waitpid(child, 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("a group of 3 ranks over local") == 2


# --- names that nobody reads -------------------------------------------------------------------------------------


def test_a_misspelt_variable_is_warned_of_once():
    program = CALLS + "ringreduce.local_group(2)\n"
    first, second = said(
        program, RINGREDUCE_ALGORITM="ring", RINGREDUCE_COLOUR="red", RINGREDUCE_EMULATED_BLOCKS="8"
    )
    assert first.splitlines() == [
        "ringreduce[rank 0] warning: the environment sets RINGREDUCE_ALGORITM, which ringreduce does not read: did you "
        "mean RINGREDUCE_ALGORITHM?",
        "ringreduce[rank 0] warning: the environment sets RINGREDUCE_COLOUR, which ringreduce does not read: "
        "docs/environment.md lists those that it reads",
    ]
    assert second == ""


def test_env_lists_what_is_set_and_hides_the_secret():
    variables = {"RINGREDUCE_SECRET": "ours", "RINGREDUCE_LINKS": "off", "RINGREDUCE_LINK": "off"}
    ended = subprocess.run(
        [sys.executable, "-m", "ringreduce", "env"],
        env={name: value for name, value in os.environ.items() if not name.startswith("RINGREDUCE_")} | variables,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ended.stdout == "RINGREDUCE_LINK=off\nRINGREDUCE_LINKS=off\nRINGREDUCE_SECRET=(hidden)\n"
    assert "did you mean RINGREDUCE_LINKS?" in ended.stderr


def test_a_benchmarks_facts_hide_the_secret(monkeypatch):
    from ringreduce.bench import facts

    monkeypatch.setenv("RINGREDUCE_SECRET", "ours")
    assert facts.machine_facts(1)["environment"][environment.SECRET] == "(hidden)"
