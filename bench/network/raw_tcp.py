"""Measures the rate of plain TCP connections between two hosts, and the round trip of a byte.

raw_tcp.py serve ADDRESS CONNECTIONS          prints "ready", later {"rate": bytes/s in all, "round_trip_us": ...}
raw_tcp.py send ADDRESS CONNECTIONS SECONDS
"""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import sys
import threading
import time

PORT, PIECE, ROUNDS = 9000, 1 << 20, 50


def serve(address: str, connections: int) -> None:
    server = socket.create_server((address, PORT))
    print("ready", flush=True)
    peers = [server.accept()[0] for _ in range(connections)]
    peers[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        peers[0].sendall(b"?")
        peers[0].recv(1)
        times.append(time.monotonic() - start)
    print(json.dumps({"rate": _rate(peers), "round_trip_us": 1e6 * statistics.median(times)}))


def _rate(peers: list[socket.socket]) -> float:
    """Returns the rate over the second half of the time, when the connections have reached their full speed."""
    buffer, total = bytearray(PIECE), 0
    progress = [(time.monotonic(), 0)]
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                if got := peer.recv_into(buffer):
                    total += got
                    progress.append((time.monotonic(), total))
                else:
                    selector.unregister(peer)
    first, last = progress[0], progress[-1]
    middle = next(point for point in progress if point[0] >= (first[0] + last[0]) / 2)
    return (last[1] - middle[1]) / (last[0] - middle[0])


def send(address: str, connections: int, seconds: float) -> None:
    peers = [socket.create_connection((address, PORT), timeout=20) for _ in range(connections)]
    peers[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(ROUNDS):
        peers[0].sendall(peers[0].recv(1))
    threads = [threading.Thread(target=_fill, args=(peer, time.monotonic() + seconds)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fill(peer: socket.socket, end: float) -> None:
    piece = bytes(PIECE)
    while time.monotonic() < end:
        peer.sendall(piece)
    peer.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
