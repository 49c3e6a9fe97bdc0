"""Bytes that change on the way: every rank learns that, and between whom, and nobody gets a wrong sum."""

from __future__ import annotations

import os

import numpy as np
import pytest
from proxy import ranks_behind

import ringreduce
from ringreduce import _engine

HEADER = 32
MARK = np.frombuffer(b"this is what the first rank says" * 4, "float32")
LARGE = 1 << 20


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TCP_CHECK", "1")


class Flip:
    """Changes one bit of the first piece that has MARK in it, so many bytes from where that begins."""

    def __init__(self, offset, bit):
        self._offset, self._bit, self._done = offset, bit, False

    def __call__(self, piece):
        at = piece.find(MARK.tobytes())
        if self._done or at < HEADER:
            return piece
        self._done = True
        changed = bytearray(piece)
        changed[at + self._offset] ^= 1 << self._bit
        return bytes(changed)


def say(comm):
    """From rank 0 to rank 1, and from there on."""
    x = MARK.copy() if comm.rank == 0 else np.zeros_like(MARK)
    try:
        comm.barrier()
        comm.broadcast(np.zeros(3), 0, algorithm="chain")
        comm.broadcast(x, 0, algorithm="chain")
        comm.barrier()
    except ringreduce.DamagedError as error:
        with pytest.raises(ringreduce.DamagedError):
            comm.barrier()
        with comm.shrink() as fewer:
            return str(error), fewer.size, int(fewer.all_reduce(np.ones(LARGE, "int8")).max())
    return "right" if (x == MARK).all() else "wrong"


def outcomes(size, flip):
    with ranks_behind(flip, say, size) as ranks:
        return ranks.wait()


@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("size", [2, 3])
def test_a_bit_of_data(size, offset):
    found = outcomes(size, Flip(offset, 5))
    assert len(set(found)) == 1, found
    text, survivors, total = found[0]
    assert text.startswith("rank 1 received a damaged frame from rank 0: bytes changed on the way")
    assert survivors == total == size


@pytest.mark.parametrize("offset", [-32, -28, -27, -26, -24, -20, -16, -8, -1])
def test_a_bit_of_a_header(offset):
    found = outcomes(2, Flip(offset, offset % 8))
    assert len(set(found)) == 1 and found[0][0].startswith("rank 1 received a damaged frame from rank 0"), (
        found
    )


def test_without_the_check_nobody_notices(monkeypatch):
    monkeypatch.delenv("RINGREDUCE_TCP_CHECK")
    assert outcomes(2, Flip(3, 5)) == ["right", "wrong"]


def test_ranks_that_do_not_agree_on_it():
    def rank_main(comm):
        os.environ["RINGREDUCE_TCP_CHECK"] = str(int(comm.rank != 1))
        with pytest.raises(ValueError, match="in the same way: it is checksums on rank 0, nothing on rank 1"):
            comm.split(0)
        os.environ["RINGREDUCE_TCP_CHECK"] = "yes"
        with pytest.raises(ValueError, match="RINGREDUCE_TCP_CHECK must be 0 or 1, not 'yes'"):
            comm.split(0)

    ringreduce.run(rank_main, 3, transport="tcp", timeout=100)


def test_the_checksum():
    assert _engine.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    data = np.random.default_rng(1).bytes(30_000)
    for first, count in [(0, 0), (1, 7), (3, 767), (0, 768), (5, 5000), (7, 12_287), (1, 29_999)]:
        part = data[first : first + count]
        whole = _engine.crc32c(part)
        assert whole == _engine.crc32c(part, by_table=True)
        for split in (count // 3, count // 2):
            assert whole == _engine.crc32c(part[split:], _engine.crc32c(part[:split]))
