"""What comes over a connection: beats without end, other builds, headers that no rank sends."""

from __future__ import annotations

import re
import struct
import time

import numpy as np
import pytest
from by_hand import FRAMES, PULSE, Ranks, hello

import ringreduce
from tests.conftest import slowly

BEATS = b"\0" * 100_000  # more than a stream reads ahead


def summed(comm, seconds=0.0):
    """All-reduces until this rank has done so for so long; what the last one gave, or what was raised."""
    x = np.zeros(1)
    until = time.monotonic() + seconds
    try:
        while x[0] < comm.size:
            x[0] = time.monotonic() >= until
            comm.all_reduce(x)
    except ringreduce.Error as error:
        return error
    return float(x[0])


def stays_open(connection):
    connection.link.settimeout(1)
    with pytest.raises(TimeoutError):
        connection.link.recv(1)


def test_a_pulse_never_fills_up():
    with Ranks(summed, 2, 2.0) as ranks:
        ranks.met.wait(20)
        pulse = ranks.dial(1, 0, PULSE)
        pulse.prove()
        pulse.link.sendall(BEATS)
        stays_open(pulse)  # its end would be taken for the rank's
        assert ranks.wait() == [2.0, 2.0]


@pytest.mark.parametrize("proves", [False, *slowly(True)])
def test_beats_before_a_proof(proves):
    """As many as a rank sends while it waits long for an answer are right; a stranger's that never end, are not."""
    with Ranks(summed, 2, 3.0) as ranks:
        ranks.met.wait(20)
        pulse = ranks.dial(1, 0, PULSE)
        if proves:
            pulse.prove(BEATS)
            stays_open(pulse)
        else:
            with pytest.raises(ConnectionError):
                while True:
                    pulse.link.sendall(BEATS)
        assert ranks.wait() == [2.0, 2.0]


def test_builds_that_differ():
    def change(endpoints):
        return [endpoints[0], endpoints[1]._replace(build=b"9.9.9, protocol 9.9".ljust(32, b"\0"))]

    with Ranks(summed, 2, change=change) as ranks:
        for error in ranks.wait():
            assert isinstance(error, ValueError)
            assert re.search(
                r"^rank 1 runs another build .*\(9\.9\.9, protocol 9\.9; here it is \d\.\d\.\d, protocol",
                str(error),
            )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"build": b"9.9.9"}, r"runs another build of ringreduce \(9\.9\.9; here it is \d"),
        ({"group": b"x" * 16}, "belongs to another job"),
        ({"world": 5}, "asked for rank 0 of 5, but this is rank 0 of 2"),
        ({"sender": 7}, "claims to be rank 7"),
        ({"purpose": 9}, "has an unknown purpose: 9"),
    ],
)
def test_a_hello_that_is_not_right(change, text, capfd):
    with Ranks(summed, 2, 0.7) as ranks:
        ranks.met.wait(20)
        end = ranks.endpoints[0]
        right = {"sender": 1, "receiver": 0, "world": 2, "group": end.group, "build": end.build}
        stranger = ranks.dial(1, 0)
        stranger.link.close()
        ranks.knock(0).sendall(hello(**{**right, **change}))
        assert ranks.wait() == [2.0, 2.0]
    assert re.search(text, capfd.readouterr().err)


# bytes, kind, lane, its check, number, check, contract, begin, bytes of the whole message
HEADER = struct.Struct("=IBBHIIQII")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (HEADER.pack(0, 77, 0, 0, 0, 0, 0, 0, 0), "a header of kind 77, lane 0, 0 bytes"),
        (HEADER.pack(9, 1, 0, 0, 0, 0, 0, 0, 9), "a header of kind 1, lane 0, 9 bytes"),
        (HEADER.pack(0, 0, 200, 0, 1, 0, 0, 0, 0), "a message of lane 200"),
        (HEADER.pack(0, 0, 0, 0, 60_000, 0, 0, 0, 0), "message number 60000"),
        (HEADER.pack(1 << 30, 0, 0, 0, 1, 0, 0, 0, 1 << 30), "a message of 1073741824 bytes"),
        (HEADER.pack(8, 0, 0, 0, 1, 0, 0, 56, 60), "a piece that is not in its message"),
        (HEADER.pack(0, 0, 0, 0, 1, 0, 0, 0, 60), "a piece that is not in its message"),
    ],
)
def test_a_header_that_is_not_right(header, text):
    """Of a rank that has proved to be one."""
    with Ranks(summed, 2, 5.0) as ranks:
        ranks.met.wait(20)
        rank = ranks.dial(1, 0, FRAMES)
        rank.prove()
        rank.link.sendall(header)
        errors = ranks.wait()
    assert isinstance(errors[0], ringreduce.PeerLost) and errors[0].rank == 1
    assert f"rank 1 sent something that no rank sends: {text}" in str(errors[0])
