"""ringreduce run on several hosts, by OpenSSH's own server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bench.network.clusters import Sshd, environment
from bench.network.hosts import Hosts
from tests.processes import gone

why_not = Sshd.missing()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))

PLACES = "host1:1,host2:2"
MEETING = """
import os, platform, sys
os.environ["RINGREDUCE_HOST"] = platform.node()
import numpy as np
import ringreduce
with ringreduce.init(timeout=30) as comm:
    x = np.full(10, comm.rank)
    comm.all_reduce(x)
    sys.stdout.write(f"{platform.node()}; {comm.rank}; {comm.size}; {x[0]}; {comm.hosts}\\n")
"""
# Each rank and a process of its own say that they are there; then rank 1 may fail.
STAYING = """
import os, subprocess, sys, time
folder, fails = sys.argv[1:]
child = subprocess.Popen(["sleep", "100"])
for name, pid in (("rank", os.getpid()), ("child", child.pid)):
    with open(f"{folder}/.{name}{os.environ['RANK']}", "w") as file:
        file.write(str(pid))
    os.rename(file.name, f"{folder}/{name}{os.environ['RANK']}")
while fails == "no" or os.environ["RANK"] != "1" or len(os.listdir(folder)) < 6:
    time.sleep(0.02)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    with Hosts(3, rate=None) as hosts, Sshd(hosts, tmp_path_factory.mktemp("ssh")) as started:
        started.hosts = hosts
        yield started


def start(ssh, *words):
    command = [
        sys.executable,
        "-m",
        "ringreduce",
        "run",
        "--hosts",
        PLACES,
        "--ssh",
        ssh.command,
        *map(str, words),
    ]
    return ssh.hosts[0].popen(
        command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def staying(ssh, tmp_path):
    """Starts a program that stays; returns the command, and the numbers of all processes of its ranks."""
    program, folder = tmp_path / "staying.py", tmp_path / "pids"
    program.write_text(STAYING)
    folder.mkdir()

    def started(fails="no"):
        run = start(ssh, program, folder, fails)
        end = time.monotonic() + 60
        while len(paths := [path for path in folder.iterdir() if path.name[0] != "."]) < 6:
            assert run.poll() is None and time.monotonic() < end, run.communicate()
            time.sleep(0.02)
        return run, {path.name: int(path.read_text()) for path in paths}

    return started


def all_gone(pids):
    """Within a time that only what hangs takes."""
    end = time.monotonic() + 60
    while left := [name for name, pid in pids.items() if not gone(pid)]:
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.05)
    return True


def clients(run):
    """Of ssh, that the command has started."""
    found = subprocess.run(["pgrep", "-P", str(run.pid), "-x", "ssh"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_ranks_meet(ssh, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(MEETING)
    said, errors = (run := start(ssh, program)).communicate(timeout=200)
    assert run.returncode == 0, errors
    places = ("host1", "host2", "host2")
    assert sorted(said.splitlines()) == [
        f"{host}; {rank}; 3; 3; [[0], [1, 2]]" for rank, host in enumerate(places)
    ]


def test_the_first_that_fails_ends_all(staying):
    run, pids = staying("yes")
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 7
    assert errors == "ringreduce: rank 1 on host2 exited with status 7; ending the other ranks\n"
    assert all_gone(pids)


def test_an_interrupt_ends_all(staying):
    run, pids = staying()
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 130 and "ringreduce:" not in errors
    assert all_gone(pids)


def test_a_kill_ends_all(staying):
    run, pids = staying()
    run.kill()
    assert all_gone(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_connection_that_is_killed_ends_all(staying, how):
    run, pids = staying()
    first, _ = sorted(clients(run))
    os.kill(first, how)
    _, errors = run.communicate(timeout=200)
    assert run.returncode != 0
    assert "host1" in errors
    assert all_gone(pids)


def test_a_host_that_cannot_be_reached(ssh):
    run = ssh.hosts[0].popen(
        [sys.executable, "-m", "ringreduce", "run", "--hosts", "host1:1,nowhere:1", "--ssh", ssh.command, "true"],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 255
    assert "nowhere" in errors and f"ringreduce: {ssh.command} nowhere failed\n" in errors
