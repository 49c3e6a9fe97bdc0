"""Processes that are started without standard input, output or error: the library leaves their numbers alone."""

from __future__ import annotations

import itertools
import os
import secrets
import shlex
import subprocess
import sys

import pytest

from tests.conftest import slowly
from tests.processes import free_port

CLOSED = [
    numbers for count in (1, 2, 3) for numbers in itertools.combinations(range(3), count)
]  # fmt: skip
BEGINNING = """
import os, sys
import numpy as np
def taken():
    places = {}
    for number in map(int, sys.argv[1]):
        try:
            places[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    # multiprocessing gives its children a null device.
    return {number: place for number, place in places.items() if place != os.devnull}
def say(text):
    with open(sys.argv[2], "a") as file:
        file.write(text + "\\n")
def check(comm):
    for _ in range(20):
        x = np.ones(10_000, np.float32)
        comm.all_reduce(x)
        assert (x == comm.size).all()
    assert not taken(), taken()
"""
RANK = """
import ringreduce
rank, name = int(os.environ["RANK"]), sys.argv[3]
try:
    for transport in ("shm", "tcp", "shm+tcp"):
        os.environ["RINGREDUCE_HOST"] = f"host{rank if '+' in transport else 0}"
        with ringreduce.init(rank, 2, name + transport, timeout=20, transport=transport) as comm:
            check(comm)
            assert comm.pending() == 0
            check(comm)
            comm.barrier()
    say("fine")
except BaseException as error:
    say(repr(error))
"""
FORKED = """
import ringreduce
if __name__ == "__main__":
    ringreduce.run(check, 2, timeout=100)
    assert not taken(), taken()
    say("fine")
"""
WITH_TORCH = """
import torch
import torch.distributed as dist
try:
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, os.environ["RANK"] == "0")
    of_torch = taken()
    dist.init_process_group("ringreduce", store=store, rank=int(os.environ["RANK"]), world_size=2)
    for _ in range(20):
        x = torch.ones(10_000)
        dist.all_reduce(x)
        assert (x == 2).all()
    assert taken() == of_torch, (taken(), of_torch)
    dist.destroy_process_group()
    say("fine")
except BaseException as error:
    say(repr(error))
"""
LAUNCHED = """
import ringreduce
try:
    with ringreduce.init(timeout=20) as comm:
        check(comm)
    print("printed", flush=True)
    say("fine")
except BaseException as error:
    say(repr(error))
"""


def closing(numbers, words):
    """The command that runs these words without standard descriptors."""
    ends = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in numbers)
    return ["sh", "-c", f"exec {shlex.join(map(str, words))} {ends}"]


def environment(**more):
    return {**os.environ, "RINGREDUCE_LOG": "debug", "RINGREDUCE_REPORT": "exit,signal,answer", **more}


def code_of(numbers):
    return "".join(map(str, numbers))


@pytest.mark.parametrize("numbers", [(0, 1, 2), *slowly(*CLOSED[:-1])], ids=code_of)
def test_ranks(numbers, tmp_path):
    name = secrets.token_hex(8)
    words = [sys.executable, "-c", BEGINNING + RANK, code_of(numbers), tmp_path / "said", name]
    ranks = [
        subprocess.Popen(closing(numbers, words), env=environment(RANK=str(rank)), stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.communicate(timeout=200)[0] == b"" and rank.returncode == 0
    assert (tmp_path / "said").read_text() == "fine\n" * 2


@pytest.mark.parametrize("numbers", [(2,), (0, 1, 2)], ids=code_of)
def test_ranks_that_a_function_starts(numbers, tmp_path):
    words = [sys.executable, "-c", BEGINNING + FORKED, code_of(numbers), tmp_path / "said"]
    assert subprocess.run(closing(numbers, words), env=environment(), timeout=200).returncode == 0
    assert (tmp_path / "said").read_text() == "fine\n"


@pytest.mark.parametrize("prefix", [[], ["--prefix"]], ids=["", "prefix"])
@pytest.mark.parametrize("numbers", [(0, 1, 2), *slowly((0,), (1,), (2,), (1, 2))], ids=code_of)
def test_ranks_that_a_command_starts(numbers, prefix, tmp_path):
    """With --prefix their output and error are pipes of the command."""
    program = tmp_path / "program.py"
    program.write_text(BEGINNING + LAUNCHED)
    # The command gives them a null device as standard input.
    theirs = "" if prefix else code_of([number for number in numbers if number])
    words = [sys.executable, "-m", "ringreduce", "run", "-n", 2, *prefix, program, theirs, tmp_path / "said"]
    done = subprocess.run(
        closing(numbers, words), env=environment(), timeout=60, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0
    assert (tmp_path / "said").read_text() == "fine\n" * 2
    assert done.stdout.count("printed") == (0 if 1 in numbers else 2)


@pytest.mark.slow
def test_ranks_of_torch(tmp_path):
    pytest.importorskip("torch")
    words = [sys.executable, "-c", BEGINNING + WITH_TORCH, "2", tmp_path / "said"]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(closing([2], words), env=environment(**meeting, RANK=str(rank))) for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert (tmp_path / "said").read_text() == "fine\n" * 2


def test_a_file_of_the_program_gets_no_log(tmp_path):
    """A program that was started without standard error may open any file under its number."""
    program = f"""
import os
assert os.open({str(tmp_path / "data")!r}, os.O_WRONLY | os.O_CREAT) == 2
import ringreduce
with ringreduce.init(0, 1, timeout=20) as comm:
    ringreduce.diagnosis.start(0, report="exit")
    comm.all_reduce(ringreduce.empty(10, "float32"))
"""
    words = [sys.executable, "-c", program]
    assert subprocess.run(closing([2], words), env=environment(), timeout=200).returncode == 0
    assert (tmp_path / "data").read_bytes() == b""


def test_descriptors_that_a_program_closes(tmp_path):
    """Daemons close theirs after everything has been imported."""
    words = [
        sys.executable,
        "-c",
        "import ringreduce\nimport os\n" + "".join(f"os.close({n})\n" for n in range(3)),
    ]
    words[2] += BEGINNING + RANK
    name = secrets.token_hex(8)
    words += ["012", str(tmp_path / "said"), name]
    ranks = [subprocess.Popen(words, env=environment(RANK=str(rank))) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert (tmp_path / "said").read_text() == "fine\n" * 2


def test_a_command_whose_standard_error_is_closed_prints_no_complaints_as_results():
    words = [sys.executable, "-m", "ringreduce", "env"]
    done = subprocess.run(
        closing([2], words),
        env=environment(RINGREDUCE_UNKNOWN="1"),
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    assert "RINGREDUCE_UNKNOWN=1" in done.stdout and "does not read" not in done.stdout
