"""Whoever connects to a rank's port without being one of its job gets nowhere, and the ranks go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import socket
import tempfile
import time

import numpy as np
import pytest
from wire import hello

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


def around_a_rank(port):
    """The other rank, which finds this one silent, knocks as one of the first."""
    first = [knock(port) for _ in range(20)]
    time.sleep(0.5)
    return first + [knock(port) for _ in range(180)]


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


def impostor(port):
    """Knows how a rank begins, but not the job."""
    kept = [knock(port) for _ in range(4)]
    kept[0].sendall(hello(1, 0, 2))
    kept[1].sendall(hello(1, 0, 2)[:30])
    kept[2].sendall(hello(7, 0, 2))
    kept[3].sendall(hello(1, 0, 2, purpose=9) + b"\1" + b"p" * 32 + b"\xff" * 4096)
    return kept


@contextlib.contextmanager
def log_of_this_process():
    """What it writes to stderr meanwhile, C++ too."""
    found = []
    with tempfile.TemporaryFile() as log:
        err = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(err, 2)
            os.close(err)
            log.seek(0)
            found += log.read().decode().splitlines()


def go_on(comm, attack):
    """All that ranks do goes well while rank 0 is attacked; what it logs."""
    comm.all_reduce(np.ones(3, "float32"))
    with log_of_this_process() as log:
        kept = attack(*ports()) if comm.rank == 0 else None
        for count in (1, 100_000, 3):
            x = np.full(count, comm.rank + 1, "float32")
            comm.all_reduce(x)
            assert (x == 3).all()
            time.sleep(0.05)
        with comm.split(0) as other:  # a rank that connects anew still gets through
            other.all_reduce(x)
            assert (x == 6).all()
        time.sleep(0.2)
        comm.barrier()
        if kept and attack not in (half_open, around_a_rank):
            assert kept[0].recv(1 << 16) == b""
    return log


@pytest.mark.parametrize("attack", [scan, half_open, around_a_rank, garbage, impostor])
def test_strangers(attack):
    lines = ringreduce.run(go_on, 2, attack, transport="tcp", timeout=20)[0]
    assert 0 < len(lines) <= 10
    assert all(line.startswith("ringreduce: rank 0 dropped a connection from") for line in lines), lines


def test_the_secret_is_demanded():
    """Who found the other ranks, but has another RINGREDUCE_SECRET than they, does not get in."""

    def rank_main(rank, name, results):
        os.environ["RINGREDUCE_SECRET"] = f"rank {rank}'s own"
        with ringreduce.init(rank, 2, name, transport="tcp", timeout=10) as comm:
            try:
                comm.all_reduce(np.ones(3, "float32"))
            except ringreduce.Error as error:
                results.put((type(error), str(error)))

    context = multiprocessing.get_context("fork")
    results, name = context.Queue(), secrets.token_hex(8)
    processes = [context.Process(target=rank_main, args=(rank, name, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(10)
    assert all(kind is ringreduce.PeerLost for kind, _ in found), found
    assert any("does not know this job's secret" in text for _, text in found), found
