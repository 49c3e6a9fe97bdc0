"""Messages on a fabric that no rank sent like that: from a stranger who knows the endpoints, or damaged on the way."""

from __future__ import annotations

import random
import struct
import subprocess
import time

import pytest
from fabric import PROGRAMS, begin, needs_headers, said

from tests.conftest import needs_libfabric, slow_rows, slowly

pytestmark = [needs_libfabric, needs_headers]

# --- strangers -------------------------------------------------------------------------------------------------------

HEADER = struct.Struct(
    "<IBBHIIQII"
)  # bytes, kind, lane, header's check, number, check, contract, begin, whole
TAIL = struct.Struct("<QII")  # key, rank, number of the bytes' own message; after the header
WHOLE = HEADER.size + TAIL.size

# Both sizes go in their own ways. Rank 0 looks for the file, so that all end after the same call.
WORK = """
import os, sys
import numpy as np
import ringreduce
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
calls = 0
try:
    with ringreduce.init(rank, size, place, transport="ofi", timeout=20) as comm:
        over = False
        while not over:
            for count in (10, 5000, 100_000):
                x = np.full(count, rank + 1.0)
                comm.all_reduce(x)
                assert (x == size * (size + 1) / 2).all(), x
            over = bool(comm.all_reduce(np.array([rank == 0 and os.path.exists(os.environ["OVER"])], "int8"))[0])
            calls += 1
            if calls == 3:
                print("begun", flush=True)
    print("right")
except (AssertionError, ringreduce.Error) as error:
    print(type(error).__name__, str(error)[:200])
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "stranger"
    source = PROGRAMS / "stranger.c"
    subprocess.run(["gcc", "-Wall", "-Werror", source, "-o", path, "-lfabric"], check=True)
    return path


class Stranger:
    """A process without the job's secret, which knows a rank's endpoint."""

    def __init__(self, program, name):
        self._process = subprocess.Popen(
            [program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "ready\n"

    def send(self, data, tag=None):
        kind = "m" if tag is None else f"t {tag:x}"
        self._process.stdin.write(f"{kind} {data.hex()}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(timeout=200)
        self._process.stdout.close()


class Job:
    """Two ranks at work, and what rank 0 sends to rank 1 while it is."""

    def __init__(self, shim, folder, provider="tcp"):
        self._spy, self._over = folder / "spy", folder / "over"
        variables = {
            "RINGREDUCE_OFI_PROVIDER": provider,
            "RINGREDUCE_OFI_DOMAIN": "lo",
            "OVER": str(self._over),
        }
        self._ranks = begin(
            {**shim("spy", SHIM_SPY=str(self._spy)), **variables},
            {**shim("spy", SHIM_SPY=str(folder / "other")), **variables},
            program=WORK,
        )
        for rank in self._ranks:
            assert rank.stdout.readline() == "begun\n"
        lines = [line.split() for line in self._spy.read_text().splitlines()]
        self.name = next(words[1] for words in lines if words[0] == "a")  # of rank 1's endpoint
        self.messages = [bytes.fromhex(words[1]) for words in lines if words[0] == "m"]
        self.tags = [int(words[1], 16) for words in lines if words[0] == "t"]

    def end(self):
        self._over.touch()
        found = [rank.communicate(timeout=200) for rank in self._ranks]
        return [out.strip() for out, _ in found], [errors for _, errors in found]


def forged(message, key):
    """A rank's own message, with another key."""
    tail = list(TAIL.unpack(message[-TAIL.size :]))
    return message[: -TAIL.size] + TAIL.pack(key, *tail[1:])


def key_of(message):
    return TAIL.unpack(message[-TAIL.size :])[0]


@pytest.mark.slow
def test_a_stranger_puts_nothing_in(shim, program, tmp_path):
    """Nor does it take the ranks' slots from them, with more messages than they have slots."""
    dice = random.Random(1)
    job = Job(shim, tmp_path)
    real = key_of(job.messages[0])
    assert all(key_of(message) == real for message in job.messages)
    with Stranger(program, job.name) as stranger:
        for _ in range(150):
            message = dice.choice(job.messages)
            for key in (0, 1, dice.getrandbits(64), real ^ 1 << dice.randrange(64), real >> 8):
                assert stranger.send(forged(message, key)) == "sent"
            assert stranger.send(dice.randbytes(dice.choice([0, 1, 40, 48, 49, 1000, 16 << 10]))) == "sent"
            # Of the bytes that follow a header by themselves, which have only a tag.
            tag = dice.choice([*job.tags, dice.getrandbits(56)]) ^ 1 << dice.randrange(16, 56)
            assert stranger.send(dice.randbytes(1000), tag) == "sent"
    answers, errors = job.end()
    assert answers == ["right", "right"], errors


@pytest.mark.slow
def test_a_message_that_is_too_long(shim, program, tmp_path):
    """For the slot that it comes to: the provider says so, and the rank goes on."""
    job = Job(shim, tmp_path)
    with Stranger(program, job.name) as stranger:
        for _ in range(5):
            stranger.send(b"x" * (100 << 10))
    answers, errors = job.end()
    assert answers == ["right", "right"], errors


@pytest.mark.slow
def test_with_the_key_it_would(shim, program, tmp_path):
    """So these messages do arrive, and the key is what keeps them out."""
    job = Job(shim, tmp_path)
    message = bytearray(max(job.messages, key=len))
    message[-WHOLE + 4] = 2  # a kind that only sockets carry
    with Stranger(program, job.name) as stranger:
        assert stranger.send(bytes(message)) == "sent"
        time.sleep(0.5)
    answers, _ = job.end()
    assert "rank 0 sent something that no rank sends: a frame that belongs on a socket" in answers[1]


# --- damage ----------------------------------------------------------------------------------------------------------

SAY = """
import sys
import numpy as np
import ringreduce
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
count = int(__import__("os").environ["COUNT"])
mark = np.zeros(count, "uint8")
mark[100:112] = np.frombuffer(b"said by rank", "uint8")
with ringreduce.init(rank, size, place, transport="ofi", timeout=10) as comm:
    x = ringreduce.zeros(count, "uint8")
    x[:] = mark if rank == 0 else 0
    try:
        comm.barrier()
        comm.broadcast(x, 0, algorithm="chain")
        comm.barrier()
        print("right" if (x == mark).all() else "wrong")
    except ringreduce.DamagedError as error:
        with comm.shrink() as fewer:
            print(error, fewer.transport, int(fewer.all_reduce(np.ones(1 << 20, "int8")).max()))
"""


def outcomes(shim, count, at, size=2, check="1", reads="0"):
    """Rank 0's bytes change: where it sends them, or, if rank 1 reads them, there."""
    variables = {
        "RINGREDUCE_TCP_CHECK": check,
        "COUNT": str(count),
        "RINGREDUCE_OFI_PROVIDER": "tcp",
        "RINGREDUCE_OFI_RMA": reads,
    }
    ranks = [variables] * size
    ranks[int(reads)] = {**shim("flip", SHIM_MARK="said by rank", SHIM_AT=str(at)), **variables}
    return said(*ranks, program=SAY)


BULK = 1 << 20
ways = pytest.mark.parametrize(("count", "reads"), [(BULK, "1"), *slow_rows((1000, "0"), (BULK, "0"))])


@pytest.mark.parametrize(
    "way",
    [
        (2, 1000, "0"),
        *slowly((2, BULK, "1"), (3, 1000, "0"), (3, BULK, "0"), (2, BULK, "0"), (3, BULK, "1")),
    ],
)
def test_a_bit_of_data(way, shim):
    size, count, reads = way
    for text in outcomes(shim, count, 3, size, reads=reads):
        assert text.startswith("rank 1 received a damaged frame from rank 0: bytes changed on the way"), text
        assert text.endswith(f" ofi {size}"), text


@pytest.mark.parametrize("at", [*slowly(-44, -43, -40, -36, -32, -24, -48, -42, -20)])
def test_a_bit_of_a_header(at, shim):
    for text in outcomes(shim, 1000, at):
        assert text.startswith("rank 1 received a damaged frame from rank 0: bytes changed on the way"), text


@ways
def test_without_the_check_nobody_notices(count, reads, shim):
    assert outcomes(shim, count, 3, check="0", reads=reads) == ["right", "wrong"]


@pytest.mark.parametrize("reads", ["0", *slowly("1")])
def test_checksums_on_messages_that_nobody_changes(reads, shim):
    variables = {"RINGREDUCE_TCP_CHECK": "1", "COUNT": str(BULK), "RINGREDUCE_OFI_RMA": reads}
    assert said(*[variables] * 3, program=SAY) == ["right"] * 3


def test_ranks_that_do_not_agree_on_checksums():
    for line in said({"RINGREDUCE_TCP_CHECK": "1"}, {}):
        assert "in the same way: it is checksums on rank 0, nothing on rank 1" in line
