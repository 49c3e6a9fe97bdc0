"""With RINGREDUCE_TLS=1 nobody on the way can read or change anything, and failures are as they are without."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from by_hand import Ranks
from proxy import Proxy, ranks_behind

import ringreduce
from ringreduce.start.rendezvous import gathering
from tests.processes import free_port

MARK = np.frombuffer(b"what nobody else is to know at all" * 16, "uint8")
LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _tls(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TLS", "1")
    monkeypatch.setenv("RINGREDUCE_SECRET", "a test's")


class Recording:
    def __init__(self):
        self.pieces = []

    def __call__(self, piece):
        self.pieces.append(piece)
        return piece

    def has(self, text):
        return text in b"".join(self.pieces)


class Flip:
    """Changes one bit of the first large piece that passes once it is armed."""

    def __init__(self, at):
        self._at, self._done = at, False

    def __call__(self, piece):
        if self._done or len(piece) < 10_000:
            return piece
        self._done = True
        changed = bytearray(piece)
        changed[self._at] ^= 16
        return bytes(changed)


def send_the_mark(comm):
    x = MARK.copy() if comm.rank == 0 else np.zeros_like(MARK)
    comm.broadcast(x, 0)
    with comm.split(0) as again:  # which has secrets of its own to tell
        again.broadcast(x, 1)
    return bool((x == MARK).all())


@pytest.mark.parametrize("encrypts", [True, False])
def test_what_passes(encrypts, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TLS", str(int(encrypts)))
    recording = Recording()
    with ranks_behind(recording, send_the_mark, 2) as ranks:
        assert ranks.wait() == [True, True]
    assert recording.has(MARK.tobytes()[:40]) is not encrypts


def every_collective(comm):
    for count in (1, 1000, 300_000):
        for algorithm in ringreduce.algorithms("all_reduce"):
            x = np.full(count, comm.rank + 1, "float32")
            assert (comm.all_reduce(x, algorithm=algorithm.name) == 6).all()
        got = np.zeros(count)
        work = comm.recv(got, (comm.rank - 1) % comm.size, async_op=True)
        comm.send(np.full(count, float(comm.rank)), (comm.rank + 1) % comm.size)
        work.wait()
        assert (got == (comm.rank - 1) % comm.size).all()
    return comm.transport


@pytest.mark.parametrize("streams", ["auto", "3"])
def test_collectives(streams, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TCP_STREAMS", streams)
    monkeypatch.delenv("RINGREDUCE_TLS")

    def join(local, name):
        options = {"transport": "tcp", "encrypt": True, "timeout": 30}
        with ringreduce.init(local.rank, local.size, name, **options) as comm:
            return every_collective(comm)

    assert ringreduce.run(join, 3, secrets.token_hex(8)) == ["tcp"] * 3


def until_it_fails(comm):
    x = np.ones(LARGE, "float32")
    try:
        comm.barrier()
        while True:
            comm.all_reduce(x, "max")
    except ringreduce.Error as error:
        with comm.shrink() as fewer:
            total = fewer.all_reduce(np.ones(3))
        return type(error), str(error), getattr(error, "rank", None), fewer.size, float(total[0])


@pytest.mark.parametrize("encrypts", [True, False])
@pytest.mark.parametrize("at", [6000, 9000])
def test_a_bit_that_changes_on_the_way(at, encrypts, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TLS", str(int(encrypts)))
    monkeypatch.setenv("RINGREDUCE_TCP_CHECK", "1")
    with ranks_behind(Flip(at), until_it_fails, 3) as ranks:
        found = ranks.wait()
    assert len(set(found)) == 1, found
    kind, text, _, survivors, total = found[0]
    assert kind is ringreduce.DamagedError and " received a damaged frame from rank " in text
    assert survivors == total == 3


def test_a_death():
    with Ranks(until_it_fails, 3) as ranks:
        ranks.met.wait(20)
        time.sleep(0.5)
        os.kill(ranks.processes[1].pid, signal.SIGKILL)
        found = ranks.wait()
    assert found[1] is None
    assert [found[rank][0] for rank in (0, 2)] == [ringreduce.PeerLost] * 2
    assert [found[rank][2:] for rank in (0, 2)] == [(1, 2, 2.0)] * 2


# --- keys ------------------------------------------------------------------------------------------------------


def shaken(keys, change=lambda piece: piece):
    """What each of two ends hears of the other, or how it fails."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(listener.getsockname(), change)
    ends = [socket.create_connection(proxy.place), listener.accept()[0]]
    listener.close()

    def talk(i):
        from ringreduce.start.rendezvous.encrypted import Encrypted

        end = Encrypted(ends[i], i == 0, keys[i])
        end.settimeout(10)
        try:
            if i == 0:
                end.sendall(b"hello" * 10_000)
                return end.recv(2)
            heard = b""
            while len(heard) < 50_000:
                heard += end.recv(50_000 - len(heard)) or b"?" * 50_000
            end.sendall(b"ok")
            return heard == b"hello" * 10_000
        except OSError as error:
            return error
        finally:
            end.close()

    try:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(talk, range(2)))
    finally:
        proxy.close()


def test_the_same_key():
    assert shaken([b"key", b"key"]) == [b"ok", True]


def test_another_key():
    began, answered = shaken([b"key", b"another"])
    assert isinstance(began, ConnectionError) and isinstance(answered, ConnectionError)
    assert "TLS" in str(answered)


def test_ranks_with_other_secrets():
    def join(local, name):
        os.environ["RINGREDUCE_SECRET"] = f"rank {local.rank}'s own"
        with ringreduce.init(local.rank, 2, name, transport="tcp", timeout=10) as comm:
            with pytest.raises(ringreduce.PeerLost) as caught:
                comm.all_reduce(np.ones(3))
            return str(caught.value)

    assert any(
        "does not know this job's secret" in text for text in ringreduce.run(join, 2, secrets.token_hex(8))
    )


# --- what does not go together ---------------------------------------------------------------------------------


def refused(variables, **options):
    """What init says to rank 1 of two, which has these variables."""

    def join(local, name):
        if local.rank == 1:
            os.environ.update(variables)
        try:
            ringreduce.init(local.rank, 2, name, timeout=10, **{"transport": "tcp", **options})
        except ValueError as error:
            return str(error)
        return None

    return ringreduce.run(join, 2, secrets.token_hex(8))


def test_a_rank_that_does_not_want_to():
    both = refused({"RINGREDUCE_TLS": "0"})
    assert all("it is TLS on rank 0, nothing on rank 1" in text for text in both), both


def test_a_rank_without_a_secret():
    both = refused({"RINGREDUCE_SECRET": ""})
    assert all(text.startswith("rank 1: encryption needs a secret: set RINGREDUCE_SECRET") for text in both)


def test_a_switch_that_is_neither_on_nor_off():
    assert "RINGREDUCE_TLS must be 0 or 1, not 'yes'" in refused({"RINGREDUCE_TLS": "yes"})[0]


def test_without_openssl(tmp_path):
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root can hide a library")
    where = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = [line.split()[-1] for line in where.splitlines() if "libssl.so" in line]
    hide = "".join(f"mount --bind /dev/null {path} && " for path in paths)
    code = "from ringreduce import _engine; _engine.tls_over(0, True, b'')"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{hide} exec "$0" -c "{code}"', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "mount" in done.stderr:
        pytest.skip("mounts are not permitted")
    assert "TLS is enabled, but OpenSSL cannot be loaded" in done.stderr


# --- meeting over a network ------------------------------------------------------------------------------------


def met(change, encrypt=(True, True), blob=b"what each tells the other, such as a key"):
    """What two ranks exchange at a port of rank 0's, past a proxy; or how that fails."""
    port = free_port()
    proxy = Proxy(("127.0.0.1", port), change)
    places = [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{proxy.place[1]}"]

    def meet(rank):
        try:
            group = gathering.join(places[rank], rank, 2, time.monotonic() + 5, encrypt[rank])
            try:
                return [group.exchange(blob + str(rank).encode()) for _ in range(2)]
            finally:
                group.close()
        except ringreduce.Error as error:
            return error

    try:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(meet, range(2)))
    finally:
        proxy.close()


@pytest.mark.parametrize("encrypts", [True, False])
def test_what_passes_while_ranks_meet(encrypts):
    recording = Recording()
    found = met(recording, (encrypts, encrypts))
    blobs = [b"what each tells the other, such as a key" + number for number in (b"0", b"1")]
    assert found == [[blobs, blobs]] * 2
    assert recording.has(b"what each tells") is not encrypts


def test_a_bit_that_changes_while_ranks_meet():
    count = threading.local()

    def flip(piece):
        count.pieces = getattr(count, "pieces", 0) + 1
        if count.pieces < 4:  # the greetings, and TLS's
            return piece
        return bytes([*piece[:-1], piece[-1] ^ 1])

    found = met(flip)
    assert all(isinstance(each, ringreduce.Error) for each in found), found


def test_ranks_that_do_not_agree_while_they_meet():
    for encrypt in ((True, False), (False, True)):
        found = met(lambda piece: piece, encrypt)
        one, other = (0, 1) if encrypt[0] else (1, 0)
        text = f"rank {one} encrypts, but rank {other} does not"
        assert all(text in str(each) for each in found), found
