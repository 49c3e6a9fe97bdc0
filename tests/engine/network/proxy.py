"""Somebody between the ranks, who reads and may change what they send each other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from by_hand import Endpoint, Ranks

Change = Callable[[bytes], bytes]


class Proxy:
    """Forwards connections to a port of this host; ``change`` is given every piece that passes, either way."""

    def __init__(self, target: tuple[str, int], change: Change) -> None:
        self._target, self._change = target, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                dialler, _ = self._listener.accept()
                try:
                    acceptor = socket.create_connection(self._target)
                except OSError:
                    dialler.close()
                    continue
                for pair in ((dialler, acceptor), (acceptor, dialler)):
                    pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                to.sendall(self._change(piece))
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends accept()
        self._listener.close()


@contextlib.contextmanager
def ranks_behind(change: Change, function: Callable[..., Any], size: int, *arguments: Any) -> Iterator[Ranks]:
    """Ranks each of which has a proxy before it."""
    proxies: list[Proxy] = []

    def moved(endpoints: list[Endpoint]) -> list[Endpoint]:
        proxies.extend(Proxy(endpoint.local(), change) for endpoint in endpoints)
        return [endpoint.at(proxy.place) for endpoint, proxy in zip(endpoints, proxies, strict=True)]

    with Ranks(function, size, *arguments, change=moved) as ranks:
        try:
            yield ranks
        finally:
            for proxy in proxies:
                proxy.close()
