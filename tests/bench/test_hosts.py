"""Several hosts on one machine: they reach each other and nobody else, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench.network.hosts import Hosts

REASON = Hosts.permitted()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# One host sends every byte back, the other says how long each took.
SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000), family=int(sys.argv[2]))
print("ready", flush=True)
peer = server.accept()[0]
while data := peer.recv(1 << 20):
    if len(data) == 1: peer.sendall(data)
"""
CLIENT = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 9000), timeout=10)
for line in sys.stdin:
    start = time.monotonic()
    peer.sendall(b"x")
    try:
        peer.settimeout(float(line))
        peer.recv(1)
        print(time.monotonic() - start, flush=True)
    except TimeoutError:
        print("timeout", flush=True)
"""
# Waits for the last byte's acknowledgement, so that what is still in queues counts too.
STREAM = """
import fcntl, socket, struct, sys, time
peer = socket.create_connection((sys.argv[1], 9000), timeout=10)
start = time.monotonic()
peer.sendall(bytes(int(sys.argv[2])))
while struct.unpack("i", fcntl.ioctl(peer, 0x5411, b"    "))[0]: time.sleep(0.001)
print(int(sys.argv[2]) / (time.monotonic() - start))
"""
LASTING = "import time; from bench.network.hosts import Hosts\nwith Hosts(2):\n"
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def pair() -> Iterator[Any]:
    with Hosts(2, rate="100mbit") as hosts:
        yield hosts


def serve(host: Any, address: str) -> Any:
    family = "10" if ":" in address else "2"
    server = host.popen([sys.executable, "-c", SERVER, address, family], **PIPES)
    assert server.stdout.readline() == "ready\n"
    return server


def ask(client: Any, patience: float = 5) -> str:
    client.stdin.write(f"{patience}\n")
    client.stdin.flush()
    return str(client.stdout.readline().strip())


def connected(hosts: Any, address: str) -> tuple[Any, Any]:
    server = serve(hosts[0], address)
    return server, hosts[1].popen([sys.executable, "-c", CLIENT, address], **PIPES)


def finish(*processes: Any) -> None:
    for process in processes:
        process.kill()
        process.communicate(timeout=200)


@pytest.mark.parametrize("version", ["address", "address6"])
def test_hosts_reach_each_other(pair: Any, version: str) -> None:
    server, client = connected(pair, getattr(pair[0], version))
    assert float(ask(client)) < 5
    finish(client, server)


def test_each_host_knows_the_names_and_nobody_else(pair: Any) -> None:
    check = """
import errno, socket, sys
print(socket.gethostname(), socket.getaddrinfo("host0", 1, socket.AF_INET)[0][4][0])
for address in ("192.0.2.1", "2001:db8::1", sys.argv[1]):
    try: socket.create_connection((address, 80), timeout=5)
    except OSError as error: print(errno.errorcode[error.errno])
"""
    mine = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    outside = mine[0] if mine else "192.0.2.2"
    command = [sys.executable, "-c", check, outside]
    done = pair[1].run(command, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["host1", pair[0].address, *(["ENETUNREACH"] * 3)]


def test_a_link_carries_its_rate_and_no_more(pair: Any) -> None:
    command = [sys.executable, "-c", STREAM, pair[0].address, str(4 << 20)]
    rates = []
    for _ in range(3):  # others that keep the cores busy slow down some
        server = serve(pair[0], pair[0].address)
        done = pair[1].run(command, capture_output=True, text=True, timeout=200, check=True)
        rates.append(float(done.stdout))
        finish(server)
    assert max(rates) == pytest.approx(12.5e6, rel=0.15)


def test_each_host_can_have_a_rate_of_its_own() -> None:
    assert Hosts(3, rate="1gbit").rates == ["1gbit"] * 3
    assert Hosts(2, rate=["1gbit", "250mbit"]).rates == ["1gbit", "250mbit"]
    with pytest.raises(ValueError, match="rate has 2 values for 3 hosts"):
        Hosts(3, rate=["1gbit", "250mbit"])


def test_a_cut_is_silent_and_heals(pair: Any) -> None:
    carrier = ["cat", f"/sys/class/net/{pair[0].interface}/carrier"]
    server, client = connected(pair, pair[0].address)
    assert ask(client) != "timeout"
    pair[0].cut()
    assert pair[0].run(carrier, capture_output=True, text=True).stdout == "1\n"
    assert ask(client, 0.3) == "timeout"
    pair[0].heal()
    assert ask(client) != "timeout"
    pair[0].unplug()
    assert pair[0].run(carrier, capture_output=True, text=True).stdout == "0\n"
    pair[0].heal()
    assert ask(client) != "timeout"
    finish(client, server)


def test_a_round_trip_takes_twice_the_delay() -> None:
    reason = Hosts.permitted(delay_ms=1)
    if reason:
        pytest.skip(reason)
    with Hosts(2, delay_ms=20) as hosts:
        server, client = connected(hosts, hosts[0].address)
        assert 0.04 <= min(float(ask(client)) for _ in range(5)) < 0.06
        hosts[0].cut()
        assert ask(client, 0.3) == "timeout"
        finish(client, server)


def namespaces(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split() if name.startswith(f"rr-{pid}-")]


def test_nothing_is_left_after_an_exception() -> None:
    before = namespaces(os.getpid())
    with pytest.raises(ZeroDivisionError), Hosts(2) as hosts:
        sleeping = hosts[0].popen(["sleep", "60"])
        assert len(namespaces(os.getpid())) == len(before) + 3
        raise ZeroDivisionError
    assert namespaces(os.getpid()) == before
    assert sleeping.returncode == -signal.SIGKILL


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_process_that_is_stopped(sign: signal.Signals) -> None:
    script = LASTING + "    print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    assert len(namespaces(process.pid)) == 3
    process.send_signal(sign)
    process.communicate(timeout=200)
    if sign == signal.SIGKILL:
        time.sleep(0.1)
        with Hosts(1):
            pass
    assert namespaces(process.pid) == []
