"""The frames that ranks send each other while they meet: blobs of an exchange, or why it has failed."""

from __future__ import annotations

import builtins
import contextlib
import struct
import time

from ringreduce.errors import Error, PeerLost, TimeoutError
from ringreduce.start.rendezvous.places import Connection, exactly

__all__ = ["AGAIN", "DATA", "HEADER", "Again", "lost", "receive", "send", "tell"]

HEADER = struct.Struct("=Bi")  # kind, length
DATA, PEER_LOST, TIMEOUT, ERROR, AGAIN = range(5)
LONGEST = 1 << 20  # bytes of a blob, checked before memory is allocated for it


class Again(Exception):
    """The other end has given up this attempt, and will begin another one. The text says why, if that is known."""


def tell(to: Connection, error: Error | Again, rank: int) -> None:
    """Tells a rank of an error, if it still listens."""
    kinds: dict[type[BaseException], int] = {PeerLost: PEER_LOST, TimeoutError: TIMEOUT, Again: AGAIN}
    kind, culprit, text = kinds.get(type(error), ERROR), getattr(error, "rank", None), str(error).encode()
    first = b"" if kind == AGAIN else struct.pack("=i", -1 if culprit is None else culprit)
    with contextlib.suppress(Error, OSError):
        send(to, kind, first + text[:4096], time.monotonic() + 0.1, rank)


def lost(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} died while the ranks were connecting", rank)


def send(to: Connection, kind: int, payload: bytes, deadline: float, rank: int) -> None:
    """Sends a frame to a rank.

    Raises:
        PeerLost: the rank has died.
        TimeoutError: it did not read the frame before the deadline.
    """
    if len(payload) > LONGEST:
        raise ValueError(f"cannot exchange a blob of {len(payload)} bytes; the limit is {LONGEST}")
    to.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        to.sendall(HEADER.pack(kind, len(payload)) + payload)
    except builtins.TimeoutError as error:
        raise TimeoutError(f"timed out sending to rank {rank}", rank) from error
    except OSError as error:
        raise lost(rank) from error


def receive(source: Connection, deadline: float, rank: int) -> bytes:
    """Returns the blob of the next frame. Raises the error that the frame tells of, or Again."""
    kind, length = HEADER.unpack(_read(source, HEADER.size, deadline, rank))
    if not 0 <= length <= LONGEST or kind > AGAIN:
        raise Error(f"rank {rank} sent bytes that are not part of the exchange")
    if kind in (PEER_LOST, TIMEOUT, ERROR) and length < 4:
        raise Error(f"rank {rank} sent bytes that are not part of the exchange")
    payload = _read(source, length, deadline, rank)
    if kind == DATA:
        return payload
    if kind == AGAIN:
        raise Again(payload.decode(errors="replace"))
    (culprit,) = struct.unpack_from("=i", payload)
    text = payload[4:].decode(errors="replace")
    if kind == ERROR:
        raise Error(text)
    raise (PeerLost if kind == PEER_LOST else TimeoutError)(text, culprit if culprit >= 0 else None)


def _read(source: Connection, length: int, deadline: float, rank: int) -> bytes:
    try:
        return exactly(source, length, deadline)
    except builtins.TimeoutError as error:
        raise TimeoutError(f"timed out waiting for rank {rank}", rank) from error
    except OSError as error:
        raise lost(rank) from error
