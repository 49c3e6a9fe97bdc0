"""Where ranks listen, how they get through to each other, and when they take each other to be gone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from by_hand import Ranks, enter, listening

import ringreduce
from bench.network.hosts import Hosts

why_not = Hosts.permitted()
needs_hosts = pytest.mark.skipif(why_not is not None, reason=str(why_not))
context = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def links_unmeasured(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_LINKS", "off")


def failure(call):
    """What a call has raised, and after how long."""
    begun = time.monotonic()
    try:
        call()
    except ringreduce.Error as error:
        return type(error), error.rank, str(error), time.monotonic() - begun
    return None


# --- listening -----------------------------------------------------------------------------------------------


def where(comm):
    comm.barrier()
    found = listening()
    comm.barrier()
    return found


def test_on_one_host_ranks_listen_there_only():
    with Ranks(where, 3) as ranks:
        for places in ranks.wait():
            assert [address for address, _ in places] == ["127.0.0.1"]


@needs_hosts
def test_networks_for_guests_are_left_out():
    with Hosts(2) as hosts:
        for host in hosts:
            for name, number in (("docker0", "172.17.0.1"), ("dmz0", f"192.168.7.{host.index + 1}")):
                host.run(
                    ["ip", "link", "add", name, "type", "veth", "peer", "name", f"in-{name}"], check=True
                )
                host.run(["ip", "address", "add", f"{number}/24", "dev", name], check=True)
                for end in (name, f"in-{name}"):
                    host.run(["ip", "link", "set", end, "up"], check=True)
        with Ranks(where, 2, first=lambda rank: enter(hosts[rank])) as ranks:
            for host, places in zip(hosts, ranks.wait(), strict=True):
                addresses = {address for address, _ in places}
                assert {host.address, host.address6, f"192.168.7.{host.index + 1}"} <= addresses
                assert not addresses & {"172.17.0.1", "127.0.0.1", "0.0.0.0", "::"}


@needs_hosts
def test_where_there_is_nothing_else_guests_networks_are_taken():
    with Hosts(2) as hosts:
        for host in hosts:
            host.run(["ip", "link", "set", "eth0", "down"], check=True)
            host.run(["ip", "link", "set", "eth0", "name", "docker7"], check=True)
            host.run(["ip", "address", "add", f"10.0.0.{host.index + 1}/24", "dev", "docker7"])
            host.run(["ip", "link", "set", "docker7", "up"], check=True)
            host.run(["ip", "route", "replace", "10.0.0.0/24", "dev", "docker7"], check=True)
        with Ranks(where, 2, first=lambda rank: enter(hosts[rank])) as ranks:
            for host, places in zip(hosts, ranks.wait(), strict=True):
                assert host.address in {address for address, _ in places}


# --- getting through -----------------------------------------------------------------------------------------


def single(endpoints):
    """Each rank has told one address, and that all are on one host: so they do not measure what joins them."""
    places = [next(place for place in end.places() if place[0].startswith("10.0.0.")) for end in endpoints]
    host = endpoints[0].host
    return [end._replace(host=host).at(place) for end, place in zip(endpoints, places, strict=True)]


def words(comm, hosts, go, dialing):
    """Between ranks 2 and 0, which are no neighbours and so not connected yet, for longer than a dial may take."""
    if comm.rank == 2:  # so that each finds the other's interface at once
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", (hosts[0].address, 9))
    go.wait(30)
    x = np.full(3, float(comm.rank))
    for _ in range(20):
        if comm.rank == 2:
            dialing.set()
            comm.send(x, 0)
            comm.recv(x, 0)
        elif comm.rank == 0:
            comm.recv(x, 2)
            comm.send(x, 2)
        time.sleep(0.1)
    return x[0]


@contextlib.contextmanager
def healer(host):
    """host.heal(), by a process that runs already: a pulse gives up soon."""
    link = host._link
    command = ["ip", "-netns", link._switch, "-force", "-batch", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as process:
        yield lambda: process.stdin.write(f"link set {link._port} master {link._bridge}\n")


@needs_hosts
def test_the_first_packet_of_a_connection_is_lost():
    go, dialing = context.Event(), context.Event()

    options = {"first": lambda rank: enter(hosts[rank]), "change": single}
    with Hosts(4) as hosts, Ranks(words, 4, hosts, go, dialing, **options) as ranks:
        ranks.met.wait(30)
        time.sleep(1)
        with healer(hosts[2]) as heal:
            hosts[2].cut()
            go.set()
            dialing.wait(30)
            time.sleep(0.05)
            heal()
            assert ranks.wait() == [2, 1, 2, 3]


def missed(comm, killed):
    """How rank 0 finds out that rank 2, which it is not connected with, is dead."""
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        killed.wait(30)
        return failure(lambda: comm.recv(np.zeros(1), 2))
    time.sleep(4)
    return None


@needs_hosts
def test_silent_addresses_hold_nothing_up():
    def silent(endpoints):
        ends = single(endpoints)
        return [
            *ends[:2],
            ends[2].at(*[(f"10.0.0.{200 + i}", 9) for i in range(4)], *ends[2].places()),
            ends[3],
        ]

    took = []
    for changing in (single, silent):
        killed = context.Event()
        with (
            Hosts(4) as hosts,
            Ranks(missed, 4, killed, first=lambda rank, h=hosts: enter(h[rank]), change=changing) as ranks,
        ):
            ranks.met.wait(30)
            ranks.processes[2].join(30)
            killed.set()
            kind, rank, _, seconds = ranks.wait()[0]
        assert (kind, rank) == (ringreduce.PeerLost, 2)
        took.append(seconds)
    assert took[1] - took[0] < 1.2, took  # half of what they take one after the other


def short(comm):
    """Rank 0 cannot open a socket for a peer that it is not connected with."""
    if comm.rank == 0:
        table = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1, table[1]))
        found = failure(lambda: comm.send(np.zeros(1), 2))
        resource.setrlimit(resource.RLIMIT_NOFILE, table)
        return found
    time.sleep(3)
    return None


def test_no_file_descriptor_is_left_to_dial():
    with Ranks(short, 4) as ranks:
        kind, rank, text, _ = ranks.wait()[0]
    assert (kind, rank) == (ringreduce.PeerLost, 0)
    assert (
        text
        == "rank 0 cannot open a connection to rank 2 (Too many open files): raise the limit of open files, ulimit -n"
    )


# --- who listens there ---------------------------------------------------------------------------------------


def taken_over(comm, victim, taken):
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    taken.wait(30)
    return failure(lambda: comm.all_reduce(np.zeros(1)))


class Way(threading.Thread):
    """Leads to a rank as long as it lives; then who comes is let in, and hears nothing."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.goal, self.kept = ("", 0), []

    def run(self):
        while True:
            try:
                came = self.server.accept()[0]
            except OSError:  # it has been closed
                return
            try:
                gone = socket.create_connection(self.goal)
            except OSError:
                self.kept.append(came)
                continue
            for one, other in ((came, gone), (gone, came)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    @staticmethod
    def carry(one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_another_program_listens_where_a_dead_rank_was(size):
    taken, way = context.Event(), Way()

    def change(endpoints):
        way.goal = next(place for place in endpoints[-1].places() if place[0] == "127.0.0.1")
        way.start()
        return [*endpoints[:-1], endpoints[-1].at(way.server.getsockname())]

    with way.server, Ranks(taken_over, size, size - 1, taken, change=change) as ranks:
        ranks.met.wait(30)
        ranks.processes[-1].join(30)
        taken.set()
        for found in ranks.wait()[:-1]:
            assert found[:2] == (ringreduce.PeerLost, size - 1), found
            assert found[3] < 15  # and not the timeout of 30


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100, b"ringrdc1" + b" " * 100]
)
def test_who_answers_is_no_rank(greeting):
    """Or one of another build: each has a text of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def change(endpoints):
            return [endpoints[0], endpoints[1].at(server.getsockname())]

        def call(comm):
            return failure(lambda: comm.all_reduce(np.zeros(1))) if comm.rank == 0 else time.sleep(5)

        with Ranks(call, 2, change=change) as ranks:
            for _ in range(2):
                server.settimeout(5)
                try:
                    link = server.accept()[0]
                except TimeoutError:
                    break
                link.sendall(greeting)
            kind, rank, text, _ = ranks.wait()[0]
    assert (kind, rank) == (ringreduce.PeerLost, 1)
    expected = (
        "the answer does not come from a rank"
        if greeting.startswith(b"HTTP")
        else "runs another build of ringreduce"
    )
    assert expected in text
