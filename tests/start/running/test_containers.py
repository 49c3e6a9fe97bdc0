"""What containers and sandboxes leave of shared memory and of networks, and what the library makes of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worlds import OWN, environment, on_one_host, start, two_hosts

from bench.network.hosts import Hosts
from tests.conftest import slowly

why_not = Hosts.permitted()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))

SANDBOX = f"{sys.executable} {Path(__file__).with_name('sandbox.py')}"
PROGRAM = """
import sys
import numpy as np
import ringreduce
try:
    with ringreduce.init(timeout=30) as comm:
        for x in (np.ones(10, np.float32), np.ones(1 << 20, np.float32), ringreduce.empty(1 << 20)):
            x[:] = comm.rank
            comm.all_reduce(x)
            assert (x == comm.size * (comm.size - 1) / 2).all()
        sys.stdout.write(f"{comm.rank}: {comm.transport} {comm.hosts}\\n")
except (ringreduce.Error, ValueError) as error:
    sys.stdout.write(f"{error}\\n")
"""
# Ranks 0 and 1, or 2 and 3, as an orchestrator starts them.
PAIR = """docker run --network=host image sh -c '
  for rank in {} {}; do RANK=$rank python program.py & done; wait' &
"""
MEET = {"WORLD_SIZE": "4", "RINGREDUCE_RENDEZVOUS": "localhost:29401", "RINGREDUCE_SECRET": "a test's"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture(scope="module")
def hosts():
    with two_hosts() as made:
        yield made


def said(script, folder, **variables):
    return sorted(on_one_host(script, folder, environment(**variables)).splitlines())


RUN = "ringreduce run -n 2 program.py"
SHARED = ["0: shm [[0, 1]]", "1: shm [[0, 1]]"]


@pytest.mark.parametrize("error", ["EPERM", *slowly("ENOSYS")])
def test_what_sandboxes_refuse(error, folder):
    assert said(f"{SANDBOX} ptrace,process_vm_readv,pidfd_open {error} {RUN}", folder) == SHARED
    without_memory = f"{SANDBOX} memfd_create {error}"
    assert said(f"{without_memory} {RUN}", folder) == ["0: tcp [[0, 1]]", "1: tcp [[0, 1]]"]
    assert said(f"{without_memory} python program.py", folder) == ["0: shm [[0]]"]


def test_shared_memory_that_is_refused_is_named(folder):
    lines = said(f"{SANDBOX} memfd_create EPERM {RUN}", folder, RINGREDUCE_TRANSPORT="shm")
    assert len(lines) == 2 and all(
        "the system does not let it share memory (memfd_create)" in x for x in lines
    )


@pytest.mark.parametrize("options", ["--shm-size=64k", "--network=host"])
def test_one_container(options, folder):
    assert said(f"docker run {options} image {RUN}", folder) == SHARED


def test_no_network_at_all(folder):
    assert said(f"unshare --net {RUN}", folder) == SHARED
    for line in said(f"unshare --net {RUN}", folder, RINGREDUCE_TRANSPORT="tcp"):
        assert "cannot open a socket to listen on: no network interface of this host is up" in line


@pytest.mark.slow
def test_two_containers_of_a_machine(folder):
    """Each shares memory inside; they cannot see each other's processes."""
    script = PAIR.format(0, 1) + PAIR.format(2, 3) + "wait"
    hosts = "[[0, 1], [2, 3]]"
    assert said(script, folder, **MEET) == [f"{rank}: shm+tcp {hosts}" for rank in range(4)]
    found = said(script, folder, **MEET, RINGREDUCE_TRANSPORT="shm")
    assert len(found) == 4
    assert all(
        "cannot connect the ranks through shared memory" in x and "one container" in x for x in found
    ), found


def test_a_user_namespace_of_ones_own(folder):
    script = "".join(f"RANK={rank} unshare --user --map-root-user python program.py &\n" for rank in (0, 1))
    assert said(script + "wait", folder, **{**MEET, "WORLD_SIZE": "2"}) == [
        "0: tcp [[0], [1]]",
        "1: tcp [[0], [1]]",
    ]


@pytest.mark.parametrize(
    ("interface", "why"),
    [
        ("lo", r"cannot be reached: it listens on its loopback interface only \(RINGREDUCE_IFACE\)"),
        ("docker0", r"\(Connection refused\) at .*172\.17\.0\.1:"),
    ],
)
def test_the_wrong_interface(interface, why, folder, hosts):
    """Of a network that every host has for itself, an address leads to the wrong host."""
    script = f"""
        ip link show docker0 > /dev/null 2>&1 || ip link add docker0 type bridge
        ip address replace 172.17.0.1/16 dev docker0; ip link set docker0 up
        export RINGREDUCE_IFACE={interface} WORLD_SIZE=2 RINGREDUCE_RENDEZVOUS=host0:29402 RINGREDUCE_SECRET=x
    """
    started = time.monotonic()
    lines = hosts.run({f"host{rank}": f"{script} RANK={rank} python program.py" for rank in (0, 1)}, folder)
    assert time.monotonic() - started < 20  # and not after the timeout
    assert len(lines.splitlines()) == 2 and all(re.search(why, line) for line in lines.splitlines()), lines


LATE = """
import signal, sys, time
def save(*_):
    sys.stdout.write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
sys.stdout.write("ready\\n")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.mark.parametrize("own", [[], OWN], ids=["a process", "process 1"])
def test_ranks_hear_that_they_are_to_end(own, folder):
    """SIGTERM, from a scheduler or from docker stop; process 1 of a container has no default for it."""
    (folder / "late.py").write_text(LATE)
    command = [*own, "ringreduce", "run", "-n", "2", "late.py"]
    run = start(command, folder, environment())
    try:
        assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        child = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
        (run.send_signal if not own else lambda number: subprocess.run(["kill", f"-{number}", child[0]]))(
            signal.SIGTERM
        )
        out, _ = run.communicate(timeout=200)
    finally:
        run.kill()
    assert out == "saved\n" * 2
    assert run.returncode == 143
