"""Ranks whose meeting the test sees, and may change; and what they say to each other on the wire."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import ipaddress
import multiprocessing
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import ringreduce

MAGIC = b"ringrdc4"
FRAMES, PULSE = 0, 1
LISTENS = "0A"
_ENDPOINT = struct.Struct("=32s16s136s32s16sII144s")
_ADDRESS = struct.Struct("=BBHI16s")
_context = multiprocessing.get_context("fork")
_inherited: set[str] = set()


class Endpoint(NamedTuple):
    """What a rank tells the others of how to reach it."""

    build: bytes
    host: bytes
    cores: bytes
    secret: bytes
    group: bytes
    checked: int
    count: int
    addresses: bytes

    @classmethod
    def of(cls, blob: bytes) -> Endpoint:
        return cls(*_ENDPOINT.unpack(blob))

    def blob(self) -> bytes:
        return _ENDPOINT.pack(*self)

    def places(self) -> list[tuple[str, int]]:
        found = []
        for family, _, port, _, number in list(_ADDRESS.iter_unpack(self.addresses))[: self.count]:
            size = 4 if family == 4 else 16
            found.append((str(ipaddress.ip_address(number[:size])), port))
        return found

    def local(self) -> tuple[str, int]:
        return next(place for place in self.places() if place[0].startswith("127."))

    def at(self, *places: tuple[str, int]) -> Endpoint:
        """The same, but said to be elsewhere (IPv4)."""
        packed = [
            _ADDRESS.pack(4, 24, port, 0, ipaddress.ip_address(host).packed.ljust(16, b"\0"))
            for host, port in places
        ]
        return self._replace(count=len(packed), addresses=b"".join(packed).ljust(144, b"\0"))


class Ranks:
    """Forked processes that join one job and call ``function(comm, *arguments)``.

    Args:
        change: is given the endpoints before the ranks get them, and returns others.
        first: what each rank's process does before anything else, such as entering a namespace.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        *arguments: Any,
        change: Callable[[list[Endpoint]], list[Endpoint]] | None = None,
        first: Callable[[int], Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.endpoints: list[Endpoint] = []
        self.met = threading.Event()
        self._change, self._size = change, size
        self.results: list[Any] = [None] * size
        pipes = [_context.Pipe() for _ in range(size)]
        self._ends = [ours for ours, _ in pipes]
        self.processes = []
        for rank in range(size):
            place = (function, rank, size, pipes[rank][1], arguments, first, timeout)
            self.processes.append(_context.Process(target=_rank, args=place, daemon=True))
            self.processes[-1].start()
        for _, theirs in pipes:
            theirs.close()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def wait(self, limit: float = 60.0) -> list[Any]:
        """What each has returned, or raised; None of one that is dead."""
        self._thread.join(limit)
        assert not self._thread.is_alive(), f"a rank hangs: {self.results}"
        return self.results

    def secret(self) -> bytes:
        return hmac.digest(
            os.environ.get("RINGREDUCE_SECRET", "").encode(), self.endpoints[0].secret, "sha256"
        )

    def knock(self, rank: int) -> socket.socket:
        """A connection that says nothing."""
        return socket.create_connection(self.endpoints[rank].local(), timeout=10)

    def dial(self, sender: int, receiver: int, purpose: int = FRAMES) -> Connection:
        """A connection of one rank to another, as if by the first, which has said its hello."""
        return Connection(self, self.knock(receiver), sender, receiver, purpose)

    def _serve(self) -> None:
        blobs: dict[int, bytes] = {}
        left = dict(zip(self._ends, range(self._size), strict=True))
        while left:
            for end in wait(list(left)):
                try:
                    kind, value = end.recv()
                except (EOFError, OSError):
                    del left[end]
                    continue
                if kind == "blob":
                    blobs[left[end]] = value
                else:
                    self.results[left[end]] = value
            if len(blobs) == self._size:
                answer = self._look_at([blobs[rank] for rank in range(self._size)])
                blobs.clear()
                for end in left:
                    end.send(answer)

    def _look_at(self, blobs: list[bytes]) -> list[bytes]:
        if self.met.is_set() or len(blobs[0]) != _ENDPOINT.size:
            return blobs
        self.endpoints = [Endpoint.of(blob) for blob in blobs]
        if self._change is not None:
            blobs = [endpoint.blob() for endpoint in self._change(self.endpoints)]
        self.met.set()
        return blobs


def _rank(function, rank, size, pipe, arguments, first, timeout) -> None:
    def exchange(blob: bytes) -> list[bytes]:
        pipe.send(("blob", blob))
        return pipe.recv()

    _inherited.update(_sockets())
    if first is not None:
        first(rank)
    result: Any
    try:
        with ringreduce.init(rank, size, exchange, transport="tcp", timeout=timeout) as comm:
            result = function(comm, *arguments)
    except Exception as error:
        result = error
    pipe.send(("result", result))


class Connection:
    """As a rank makes it."""

    def __init__(self, ranks: Ranks, link: socket.socket, sender: int, receiver: int, purpose: int) -> None:
        self.link, self._secret = link, ranks.secret()
        end = ranks.endpoints[0]
        self._hello = hello(sender, receiver, len(ranks.endpoints), purpose, end.group, end.build)
        link.sendall(self._hello)

    def prove(self, beats: bytes = b"") -> None:
        """Waits for the answer, and answers it."""
        answer = b""
        while len(answer) < 56:
            piece = self.link.recv(56 - len(answer))
            assert piece, "hung up"
            answer += piece
        magic, nonce, proof = answer[:8], answer[8:24], answer[24:]
        assert magic == MAGIC and proof == self._sign(b"accept", nonce)
        self.link.sendall(beats + b"\1" + self._sign(b"dial", nonce))

    def _sign(self, side: bytes, nonce: bytes) -> bytes:
        return hmac.new(self._secret, side + self._hello + nonce, hashlib.sha256).digest()


def hello(
    sender: int,
    receiver: int,
    world: int,
    purpose: int = FRAMES,
    group: bytes = b"g" * 16,
    build: bytes = b"",
) -> bytes:
    return struct.pack(
        "=8s32siiiI16s16s", MAGIC, build, sender, receiver, world, purpose, group, os.urandom(16)
    )


def _sockets() -> set[str]:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.islink(link)}


def listening() -> list[tuple[str, int]]:
    """Where this process does, by sockets of its own."""
    sockets = _sockets() - _inherited
    found = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}") as table:
            for line in list(table)[1:]:
                fields = line.split()
                number, _, port = fields[1].rpartition(":")
                words = struct.pack(
                    f"={len(number) // 8}I", *(int(n, 16) for n in re.findall(".{8}", number))
                )
                if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                    found.append((str(ipaddress.ip_address(words)), int(port, 16)))
    return sorted(found)


def enter(host: Any) -> None:
    """This process is on a host of hosts.py from now on."""
    with open(f"/run/netns/{host._link.namespace}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
