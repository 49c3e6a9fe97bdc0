"""Whoever connects to a rank's port without being one of its job gets nowhere, and the ranks go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import secrets
import select
import socket
import struct
import tempfile
import time

import numpy as np
import pytest
from by_hand import Ranks, hello, listening

import ringreduce
from tests.conftest import slowly


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
        kept = attack(*[port for _, port in listening()]) if comm.rank == 0 else None
        for count in (1, 100_000, 3):
            x = np.full(count, comm.rank + 1, "float32")
            comm.all_reduce(x)
            assert (x == 3).all()
            time.sleep(0.05)
        with comm.split(0) as other:  # a rank that connects anew still gets through
            other.all_reduce(x)
            assert (x == 6).all()
        for _ in range(200):  # rank 0 waits, and sees to the door meanwhile
            time.sleep(0.001 * comm.rank)
            comm.barrier()
        # A rank that lacks a core lets strangers in slowly.
        while not comm.broadcast(np.array([os.fstat(2).st_size]))[0]:
            time.sleep(0.001 * comm.rank)
        if kept and attack not in (half_open, around_a_rank):
            assert kept[0].recv(1 << 16) == b""
    return log


@pytest.mark.parametrize("attack", [garbage, impostor, around_a_rank, *slowly(scan, half_open)])
def test_strangers(attack):
    # A fork would have whatever this process listens at, such as places of NCCL's unique ids.
    lines = ringreduce.run(go_on, 2, attack, transport="tcp", timeout=100, start="spawn")[0]
    assert 0 < len(lines) <= 10
    assert all(line.startswith("ringreduce[rank 0] warning: dropped a connection from") for line in lines), (
        lines
    )


def flood(place, seconds, results):
    """Connections as fast as they can be made, each of which is reset at once; how many a second."""
    begun, count = time.monotonic(), 0
    with contextlib.suppress(OSError):  # the rank may have ended
        while time.monotonic() - begun < seconds:
            with socket.create_connection(place, timeout=5) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            count += 1
    results.put(count / (time.monotonic() - begun))


def empty(listener):
    """Takes what comes, as a rank would have to."""
    while True:
        listener.accept()[0].close()


def rates(comm, seconds, turns, go):
    """All-reduces a second of the job while a flood goes elsewhere, and while it goes to rank 0, in turn."""
    found = []
    x = np.zeros(2)
    for _ in range(turns):
        comm.barrier()
        go.wait()
        begun, count = time.monotonic(), 0
        x[0] = 0
        while x[0] < comm.size:
            x[0] = time.monotonic() - begun > seconds
            comm.all_reduce(x)
            count += 1
        found.append(count / (time.monotonic() - begun))
    return found


@pytest.mark.slow
def test_a_flood_leaves_the_ranks_their_time():
    context = multiprocessing.get_context("fork")
    go, results = context.Barrier(3), context.Queue()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    sink = context.Process(target=empty, args=(listener,), daemon=True)
    sink.start()
    speeds, seconds, pairs = [], 0.5, 5  # short turns: whatever else has the cores disturbs both of a pair
    with Ranks(rates, 2, seconds, 2 * pairs, go) as ranks:
        ranks.met.wait(20)
        victim = next(place for place in ranks.endpoints[0].places() if place[0].startswith("127."))
        for place in (listener.getsockname(), victim) * pairs:
            flooder = context.Process(target=flood, args=(place, seconds, results))
            go.wait(20)
            flooder.start()
            speeds.append(results.get(timeout=30))
            flooder.join()
        found = ranks.wait()
    sink.kill()
    sink.join()
    print(speeds, found)
    elsewhere, here = np.array(found[0]).reshape(pairs, 2).T
    assert np.median(here / elsewhere) > 0.5, (found, speeds)


def between(comm, go, done):
    """Rank 0 comes late to a call, when strangers are at its door."""
    x = np.ones(3)
    comm.all_reduce(x)
    go.wait(30)
    time.sleep(0 if comm.rank else 0.3)
    comm.all_reduce(x)
    if comm.rank == 0:
        done.set()
        time.sleep(2)
    comm.all_reduce(x)


def test_a_call_goes_before_the_strangers():
    context = multiprocessing.get_context("fork")
    go, done = context.Event(), context.Event()
    with Ranks(between, 2, go, done) as ranks, contextlib.ExitStack() as stack:
        ranks.met.wait(20)
        time.sleep(0.5)
        waiting = select.poll()
        for _ in range(600):
            stranger = stack.enter_context(ranks.knock(0))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            waiting.register(stranger, select.POLLIN)
        go.set()
        done.wait(30)
        assert len(waiting.poll(0)) < 300  # they have been served, and sent away
        assert ranks.wait() == [None, None]


def full(comm, come):
    """Rank 0 has no file descriptor for the strangers at its door; how often it sleeps while it waits."""
    x = np.ones(3)
    comm.all_reduce(x)
    table = resource.getrlimit(resource.RLIMIT_NOFILE)
    slept = []
    for _ in range(2):
        comm.barrier()
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        time.sleep(comm.rank)
        comm.barrier()
        slept.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - begun)
        if comm.rank == 0 and len(slept) == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1, table[1]))
            come.set()
    resource.setrlimit(resource.RLIMIT_NOFILE, table)
    for _ in range(4):
        time.sleep(0.2 * comm.rank)
        comm.barrier()
    return slept


def test_no_file_descriptors_are_left(capfd):
    come = multiprocessing.get_context("fork").Event()
    with Ranks(full, 2, come) as ranks:
        come.wait(30)
        stranger = ranks.knock(0)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        (before, then), _ = ranks.wait()
        assert stranger.recv(1) == b""  # served once there was room
    assert then > before / 4, (before, then)
    said = capfd.readouterr().err
    assert said.count("[rank 0] warning: cannot accept connections: Too many open files") == 1, said


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
