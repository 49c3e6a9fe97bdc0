"""Whoever connects to a rank's port without being one of its job gets nowhere, and the ranks go on."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time

import numpy as np
import pytest

import ringreduce

LISTENS = "0A"


def ports():
    """Where this process listens."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    sockets = {os.readlink(link) for link in links if os.path.islink(link)}
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}") as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def knock(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def scan(port):
    for _ in range(50):
        knock(port).close()


def half_open(port):
    return [knock(port) for _ in range(200)]  # more than are let in at a time


def garbage(port):
    kept = []
    for noise in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        os.urandom(5000),
        b"\0" * 100,
        b"ringrdc0" * 20,
    ):
        kept.append(knock(port))
        kept[-1].sendall(noise)
    return kept


def hello(sender, receiver, world, purpose=0):
    return struct.pack("=8siiiI16s16s", b"ringrdc1", sender, receiver, world, purpose, b"g" * 16, b"n" * 16)


def impostor(port):
    """Knows how a rank begins, but not the job."""
    kept = [knock(port) for _ in range(4)]
    kept[0].sendall(hello(1, 0, 2))
    kept[1].sendall(hello(1, 0, 2)[:30])
    kept[2].sendall(hello(7, 0, 2))
    kept[3].sendall(hello(1, 0, 2, purpose=9) + b"\1" + b"p" * 32 + b"\xff" * 4096)
    return kept


def go_on(comm, attack):
    comm.all_reduce(np.ones(3, "float32"))
    log = tempfile.TemporaryFile()
    kept = None
    if comm.rank == 0:
        err = os.dup(2)
        os.dup2(log.fileno(), 2)
        (port,) = ports()
        kept = attack(port)
    for count in (1, 100_000, 3):
        x = np.full(count, comm.rank + 1, "float32")
        comm.all_reduce(x)
        assert (x == 3).all()
        time.sleep(0.05)
    with comm.split(0) as other:  # a rank that connects anew still gets through
        x = np.ones(1000, "float32")
        other.all_reduce(x)
        assert (x == 2).all()
    if kept:
        time.sleep(0.2)
        comm.all_reduce(x)
        assert kept[0].recv(1 << 16) == b"" or attack is half_open
    if comm.rank == 0:
        os.dup2(err, 2)
        log.seek(0)
        return log.read().decode()
    if attack is not scan:
        comm.all_reduce(x)
    return ""


@pytest.mark.parametrize("attack", [scan, half_open, garbage, impostor])
def test_strangers(attack):
    def rank_main(comm):
        text = go_on(comm, attack)
        comm.barrier()
        return text

    text = ringreduce.run(rank_main, 2, transport="tcp", timeout=20)[0]
    lines = text.splitlines()
    assert 0 < len(lines) <= 10, text
    assert all(line.startswith("ringreduce: rank 0 dropped a connection from") for line in lines), text


def test_the_secret_is_demanded(monkeypatch):
    def rank_main(comm):
        with pytest.raises(ringreduce.PeerLost, match="does not know this job's secret"):
            comm.all_reduce(np.ones(3, "float32"))

    def other_secret(rank, size, store):
        os.environ["RINGREDUCE_SECRET"] = f"rank {rank}'s own"
        return ringreduce.init(rank, size, store, transport="tcp", timeout=5)

    import multiprocessing
    import secrets

    name = secrets.token_hex(8)

    def main(rank, results):
        try:
            with other_secret(rank, 2, name) as comm:
                rank_main(comm)
            results.put("well")
        except BaseException as error:
            results.put(repr(error))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=main, args=(rank, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(10)
    assert found == ["well", "well"]
