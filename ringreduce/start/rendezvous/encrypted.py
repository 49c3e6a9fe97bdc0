"""Sockets encrypted with TLS 1.3 and a shared secret. Uses the engine: Python supports this only since 3.13."""

from __future__ import annotations

import builtins
import select
import socket
import time

from ringreduce import _engine

__all__ = ["Encrypted"]


class Encrypted:
    """An encrypted :class:`Connection`. The end that ``begins`` starts the handshake with its first :meth:`sendall`."""

    def __init__(self, plain: socket.socket, begins: bool, secret: bytes) -> None:
        plain.setblocking(False)
        self._plain = plain
        self._tls = _engine.tls_over(plain.fileno(), begins, secret)
        self._timeout = 0.0

    def fileno(self) -> int:
        return self._plain.fileno()

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        deadline = time.monotonic() + self._timeout
        while data or self._tls.holds:
            taken = self._tls.write(data)
            if taken is None:
                self._wait(deadline)
            else:
                data = data[taken:]

    def recv(self, count: int) -> bytes:
        deadline = time.monotonic() + self._timeout
        while (got := self._tls.read(count)) is None:
            self._wait(deadline)
        return got

    def close(self) -> None:
        self._plain.close()

    def _wait(self, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(self._plain, select.POLLIN | (select.POLLOUT if self._tls.holds else 0))
        if not waiting.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise builtins.TimeoutError
