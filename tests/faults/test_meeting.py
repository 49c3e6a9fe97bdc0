"""Strangers at the socket where ranks meet get nowhere, and the ranks go on meeting."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

import ringreduce
from ringreduce.start.rendezvous import frames, gathering, reception
from ringreduce.start.rendezvous.named_places import place_named
from ringreduce.start.rendezvous.network_places import NetworkPlace
from tests.conftest import slowly
from tests.processes import free_port


def _address(name: str) -> str:
    return "\0ringreduce-" + hashlib.sha256(f"{os.getuid()}/{name}".encode()).hexdigest()[:32]


class Meeting:
    """Ranks that meet in threads, and what each of them got: blobs or an exception."""

    def __init__(self, size: int, timeout: float = 10.0, name: str = "") -> None:
        self.name, self.size = name or secrets.token_hex(8), size
        self.found: dict[int, object] = {}
        self.deadline = time.monotonic() + timeout
        self.threads: list[threading.Thread] = []

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            thread = threading.Thread(target=self._meet, args=(rank,))
            thread.start()
            self.threads.append(thread)

    def _meet(self, rank: int) -> None:
        try:
            group = gathering.join(self.name, rank, self.size, self.deadline)
            group.exchange(b"first")
            self.found[rank] = group.exchange(str(rank).encode())
            group.close()
        except ringreduce.Error as error:
            self.found[rank] = error

    def knock(self) -> socket.socket:
        """A connection to rank 0, from nobody in particular."""
        while True:
            host, _, port = self.name.removeprefix("tcp://").rpartition(":")
            knocker = socket.socket(socket.AF_INET if host else socket.AF_UNIX)
            try:
                knocker.connect((host, int(port)) if host else _address(self.name))
                return knocker
            except OSError:
                knocker.close()
                assert time.monotonic() < self.deadline
                time.sleep(0.005)

    def end(self) -> dict[int, object]:
        for thread in self.threads:
            thread.join(15)
            assert not thread.is_alive(), "a rank hangs"
        return self.found

    def assert_met(self, but: int = -1) -> None:
        everybody = [str(rank).encode() for rank in range(self.size)]
        assert self.end() == {rank: everybody for rank in range(self.size) if rank != but}


def _greeting(rank: int, size: int, magic: bytes = b"ringrdc1") -> bytes:
    return struct.pack("=8sii", magic, rank, size)


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "a huge length": struct.pack("!i", 0x7FFFFFFF),
    "a huge long length": struct.pack("!iQ", -1, 1 << 60),
    "another magic": _greeting(1, 3, b"ringrdc0"),
    "a rank too high": _greeting(3, 3),
    "a negative rank": _greeting(-1, 3),
    "rank 0": _greeting(0, 3),
    "half a greeting": _greeting(1, 3)[:10],
    "nothing": b"",
}


@pytest.mark.parametrize("said", GARBAGE)
def test_garbage_is_dropped(said):
    ranks = Meeting(3)
    ranks.start(0)
    with ranks.knock() as stranger:
        stranger.sendall(GARBAGE[said])
        began = time.monotonic()
        ranks.start(1, 2)
        ranks.assert_met()
        assert time.monotonic() - began < 5


def test_silent_connections_do_not_block():
    ranks = Meeting(2)
    ranks.start(0)
    silent = [ranks.knock() for _ in range(100)]
    ranks.start(1)
    ranks.assert_met()
    for each in silent:
        each.close()


def test_a_rank_claimed_twice_is_an_error():
    ranks = Meeting(3)
    ranks.start(0)
    with ranks.knock() as one, ranks.knock() as two:
        one.sendall(_greeting(1, 3))
        two.sendall(_greeting(1, 3))
        assert "two processes claim to be rank 1" in str(ranks.end()[0])


def test_another_size_is_an_error():
    ranks = Meeting(3)
    ranks.start(0)
    with ranks.knock() as one:
        one.sendall(_greeting(1, 4))
        assert "4 ranks" in str(ranks.end()[0])


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _join(address: str, rank: int, secret: str, timeout: float) -> str:
    """What rank 0 or 1 of 2 is told when it cannot meet the other."""
    try:
        gathering.join(NetworkPlace([address], secret.encode()), rank, 2, time.monotonic() + timeout)
    except ringreduce.Error as error:
        return str(error)
    return "they have met"


def test_another_secret_is_named_to_both():
    address = _free_address()
    with ThreadPoolExecutor() as pool:
        host = pool.submit(_join, address, 0, "one", 2.0)
        guest = pool.submit(_join, address, 1, "another", 1.0)
    assert "closes the connection: its RINGREDUCE_SECRET differs from this rank's" in guest.result()
    assert "waiting for ranks [1] to start; it has turned away" in host.result()
    assert "a different RINGREDUCE_SECRET" in host.result()


def test_another_secret_is_told_long_before_the_time_is_up(monkeypatch):
    monkeypatch.setattr(reception, "_PATIENCE", 0.3)
    monkeypatch.setenv("RINGREDUCE_SECRET", "another")
    address = _free_address()
    with ThreadPoolExecutor() as pool:
        host = pool.submit(_join, address, 0, "one", 2.0)
        with pytest.raises(ringreduce.Error, match="RINGREDUCE_SECRET differs from this rank's"):
            gathering.join(f"tcp://{address}", 1, 2, time.monotonic() + 300)
        host.result()


def test_who_was_turned_away_says_so_when_rank_0_has_gone():
    """Nobody listens any more when its time is up."""
    address = _free_address()
    with ThreadPoolExecutor() as pool:
        host = pool.submit(_join, address, 0, "one", 0.5)
        guest = pool.submit(_join, address, 1, "another", 1.5)
    said = guest.result()
    assert "timed out waiting for rank 0 to start; this process was turned away" in said
    assert (
        f"127.0.0.1:{address.rpartition(':')[2]} closes the connection: its RINGREDUCE_SECRET differs" in said
    )
    assert "with a different RINGREDUCE_SECRET, from 127.0.0.1" in host.result()


def test_refusals_are_told_to_ranks_that_were_not_refused():
    address = _free_address()
    with ThreadPoolExecutor() as pool:

        def join(rank, secret):
            with pytest.raises(ringreduce.TimeoutError) as late:
                gathering.join(NetworkPlace([address], secret), rank, 3, time.monotonic() + 1)
            return str(late.value)

        said = list(pool.map(join, range(3), [b"one", b"one", b"another"]))
    assert said[0] == said[1] and "waiting for ranks [2] to start; it has turned away" in said[0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "sends nothing: it is not ringreduce"),
        (b"", "closes the connection"),
        (b"SSH-2.0-something" * 9, "does not know this rank's"),
    ],
)
def test_a_foreign_program_is_told_from_a_job(answer, says):
    """Rank 0 says that its port is taken, the others what is wrong with who answers there."""
    with socket.create_server(("127.0.0.1", 0)) as foreign, ThreadPoolExecutor() as pool:
        address = f"127.0.0.1:{foreign.getsockname()[1]}"
        host, guest = pool.submit(_join, address, 0, "s", 1.0), pool.submit(_join, address, 1, "s", 1.5)
        foreign.settimeout(0.05)
        callers = []
        while not guest.done():
            with contextlib.suppress(TimeoutError):
                callers.append(foreign.accept()[0])
                if answer is not None:
                    callers[-1].sendall(answer)
                    callers[-1].close()
        assert f"port {foreign.getsockname()[1]} of its host is in use by another program" in host.result()
        assert "at 127.0.0.1:" in guest.result()
        assert says in guest.result()
        for caller in callers:
            caller.close()


def test_missing_ranks_are_named_to_all():
    ranks = Meeting(4, timeout=0.5)
    ranks.start(0, 2)
    for error in ranks.end().values():
        assert isinstance(error, ringreduce.TimeoutError)
        assert error.rank == 1
        assert "[1, 3]" in str(error)


def test_a_rank_lost_while_others_come_is_named_to_all():
    ranks = Meeting(4)
    ranks.start(0, 2)
    with ranks.knock() as one:
        one.sendall(_greeting(1, 4))
        time.sleep(0.1)
    for error in ranks.end().values():
        assert isinstance(error, ringreduce.PeerLost) and error.rank == 1


STRANGER = """
import os, socket, sys, time
os.setgid(65534); os.setgroups([]); os.setuid(65534)
knocker = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "connect":
    while True:
        try:
            knocker.connect("\\0" + sys.argv[2])
            break
        except OSError:
            time.sleep(0.01)
    knocker.settimeout(5)
    try:
        knocker.sendall(bytes.fromhex(sys.argv[3]))
        sys.exit(0 if knocker.recv(1) == b"" else 2)
    except ConnectionError:
        sys.exit(0)
knocker.bind("\\0" + sys.argv[2])
knocker.listen()
print("here", flush=True)
time.sleep(1)
"""


@pytest.fixture
def stranger():
    """Starts a process of another user."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    started = []

    def start(*arguments):
        started.append(
            subprocess.Popen([sys.executable, "-c", STRANGER, *arguments], stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_rank_that_dies_after_its_last_word_fails_nobodys_exchange():
    """Else some ranks would have the blobs, and go on, and others not."""
    name, deadline, said = secrets.token_hex(8), time.monotonic() + 10, threading.Barrier(3)

    def meet(rank):
        group = gathering.join(name, rank, 3, deadline)
        if rank > 0:
            group._host.sendall(frames.HEADER.pack(frames.DATA, 1) + str(rank).encode())
        if rank == 1:
            group.close()
        said.wait(10)  # all words are there before rank 0 reads any
        if rank == 1:
            return None
        receive = functools.partial(frames.receive, getattr(group, "_host", None), deadline, 0)
        blobs = group.exchange(b"0") if rank == 0 else [receive() for _ in range(3)]
        with pytest.raises(ringreduce.PeerLost) as lost:
            group.exchange(b"")
        group.close()
        return blobs, lost.value.rank

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(meet, range(3)))
    assert found == [([b"0", b"1", b"2"], 1), None, ([b"0", b"1", b"2"], 1)]


def test_another_user_is_turned_away(stranger):
    ranks = Meeting(2)
    ranks.start(0)
    other = stranger("connect", _address(ranks.name)[1:], _greeting(1, 2).hex())
    assert other.wait(10) == 0
    ranks.start(1)
    ranks.assert_met()


def test_another_user_who_was_first_only_delays(stranger):
    ranks = Meeting(2)
    other = stranger("bind", _address(ranks.name)[1:])
    assert other.stdout.readline() == "here\n"
    ranks.start(0, 1)
    ranks.assert_met()


def test_strangers_that_speak_while_others_push_them_out():
    """Rank 0 hears of both at once: of a connection too many, and of those that it drops for its sake."""
    group = Meeting(2)
    group.start(0)
    with contextlib.ExitStack() as knockers:
        for _ in range(10):
            crowd = [knockers.enter_context(group.knock()) for _ in range(80)]
            for knocker in crowd:
                with contextlib.suppress(OSError):  # it may have been dropped
                    knocker.send(b"r")
        group.start(1)
        group.assert_met()


def test_a_rank_that_was_started_again_takes_only_an_empty_place():
    ranks = Meeting(3)
    ranks.start(0, 1)
    place = place_named(ranks.name)
    with ranks.knock():  # rank 0 listens
        assert gathering.take_place(place, 1, 4, ranks.deadline, False) is None  # of another size
    time.sleep(0.2)  # rank 1 has come
    assert gathering.take_place(place, 1, 3, ranks.deadline, False) is None
    group = gathering.take_place(place, 2, 3, ranks.deadline, False)
    group.exchange(b"first")
    assert group.exchange(b"2") == [b"0", b"1", b"2"]
    group.close()
    ranks.assert_met(but=2)


@pytest.mark.parametrize("none_left", [False, *slowly(True)])
def test_ranks_that_were_all_started_again(none_left):
    """Without the word of their launcher, they may all be newcomers to a group that is running."""
    place, deadline = place_named(secrets.token_hex(8)), time.monotonic() + 2

    def meet(rank):
        while time.monotonic() < deadline:
            group = gathering.take_place(place, rank, 2, deadline + 5, False, none_left)
            if group is not None:
                return group.exchange(b"")
        return None

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(meet, range(2))) == [[b""] * 2 if none_left else None] * 2


SAID = st.one_of(
    st.binary(max_size=80),
    st.builds(_greeting, st.integers(-3, 3), st.integers(-3, 3)),
    st.builds(lambda proof: _greeting(1, 2) + proof, st.binary(max_size=60)),
)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(SAID, max_size=6))
def test_whatever_strangers_say_the_ranks_meet(said):
    group = Meeting(2, name=f"tcp://127.0.0.1:{free_port()}")
    with mock.patch.dict(os.environ, RINGREDUCE_SECRET="known to ranks"), contextlib.ExitStack() as knockers:
        group.start(0)
        for words in said:
            knocker = knockers.enter_context(group.knock())
            with contextlib.suppress(OSError):  # it may have been dropped
                knocker.send(words)
        group.start(1)
        group.assert_met()
