"""Measures the rate of a plain TCP connection between two hosts, and the round trip of a byte.

raw_tcp.py serve ADDRESS              prints "ready", later {"rate": bytes/s, "round_trip_us": ...}
raw_tcp.py send ADDRESS SECONDS
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time

PORT, PIECE, ROUNDS = 9000, 1 << 20, 50


def serve(address: str) -> None:
    server = socket.create_server((address, PORT))
    print("ready", flush=True)
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        peer.sendall(b"?")
        peer.recv(1)
        times.append(time.monotonic() - start)
    print(json.dumps({"rate": _rate(peer), "round_trip_us": 1e6 * statistics.median(times)}))


def _rate(peer: socket.socket) -> float:
    """Returns the rate over the second half of the time, when the connection has reached its full speed."""
    buffer, total = bytearray(PIECE), 0
    progress = [(time.monotonic(), 0)]
    while got := peer.recv_into(buffer):
        total += got
        progress.append((time.monotonic(), total))
    first, last = progress[0], progress[-1]
    middle = next(point for point in progress if point[0] >= (first[0] + last[0]) / 2)
    return (last[1] - middle[1]) / (last[0] - middle[0])


def send(address: str, seconds: float) -> None:
    peer = socket.create_connection((address, PORT), timeout=20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(ROUNDS):
        peer.sendall(peer.recv(1))
    end, piece = time.monotonic() + seconds, bytes(PIECE)
    while time.monotonic() < end:
        peer.sendall(piece)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        send(sys.argv[2], float(sys.argv[3]))
