"""What a place must do where ranks meet rank 0, so that both ends know that the other belongs to the job."""

from __future__ import annotations

import errno
import socket
import time
from typing import Protocol

from ringreduce.errors import TimeoutError

__all__ = ["Connection", "Place", "Space", "TurnedAway", "Unwanted", "bind", "exactly"]


class Connection(Protocol):
    """The methods of a socket that ranks need after the greeting."""

    def fileno(self) -> int: ...
    def settimeout(self, seconds: float, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, count: int, /) -> bytes: ...
    def close(self) -> None: ...


def exactly(source: Connection, count: int, deadline: float | None = None) -> bytes:
    """Reads count bytes.

    Raises:
        ConnectionError: the other end closes the connection first.
        builtins.TimeoutError: they do not come before the deadline, or in time for a socket with a timeout.
    """
    read = b""
    while len(read) < count:
        if deadline is not None:
            source.settimeout(max(deadline - time.monotonic(), 0.001))
        more = source.recv(count - len(read))
        if not more:
            raise ConnectionError
        read += more
    return read


class Place(Protocol):
    """A place to meet. A greeting is followed by a proof of ``proof_size`` bytes."""

    on_network: bool
    knows: str  # what proves that a process belongs to the job
    proof_size: int

    def listener(self, deadline: float) -> socket.socket:
        """Returns a socket that is bound to the place. Waits until the place is free."""

    def withdraw(self) -> None:
        """Ends the meeting of ranks there: all have come."""

    def challenge(self, stranger: socket.socket) -> bytes | None:
        """Sends a challenge to a new connection, and returns it. None rejects the connection."""

    def accepts(
        self, stranger: socket.socket, challenge: bytes, greeting: bytes, proof: bytes, wanted: bool
    ) -> bool:
        """Returns whether a greeting comes from a rank of the job. If so, sends it a proof in return.

        The proof also says whether the rank is ``wanted`` here, or comes too early or too late.
        """

    def dial(self, timeout: float) -> socket.socket:
        """Connects to the place."""

    def greet(self, dialled: socket.socket, greeting: bytes) -> None:
        """Greets rank 0. Raises TurnedAway if either side does not accept the other, and Unwanted if they do."""

    def encrypted(self, greeted: socket.socket, begins: bool) -> Connection:
        """Returns the connection encrypted with TLS, if the place is on a network."""

    def is_here(self) -> bool:
        """Returns whether others would find a listener of this host at the place."""


class Space(Protocol):
    """A launcher's key-value space, or another store, which only the ranks of a job can reach."""

    def publish(self, key: str, text: str, deadline: float) -> None: ...
    def look_up(self, key: str, deadline: float) -> str: ...


class TurnedAway(ConnectionError):
    """A process at rank 0's address cannot meet with this rank. The text says why."""


class Unwanted(TurnedAway):
    """The process there belongs to the job, but waits for others. The text says where it is."""


def bind(listener: socket.socket, address: tuple[str, int] | str, deadline: float, taken: str) -> None:
    """Waits until the address is free. Closes the socket if it cannot be bound."""
    try:
        _bind(listener, address, deadline, taken)
    except BaseException:
        listener.close()
        raise


def _bind(listener: socket.socket, address: tuple[str, int] | str, deadline: float, taken: str) -> None:
    while True:
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # The previous job may still be meeting there.
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 timed out: {taken}", 0) from error
            time.sleep(0.01)
