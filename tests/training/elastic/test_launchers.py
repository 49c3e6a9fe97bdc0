"""Elastic training under launchers: a rank is killed, the others go on, and it comes back."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ringreduce
from tests.conftest import slowly
from tests.processes import free_port
from tests.training.elastic.ranks import Job, described, grown_by, kill_self

pytest.importorskip("torch")

from torch.distributed import TCPStore

from bench.network.clusters import Sshd, environment
from bench.network.hosts import Hosts

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("launched.py")
SAID = re.compile(r"rank (\d+) of (\d+); went on without: (\w+); (\w+)")


def check(output, size):
    """That all ranks of the last group have printed the same state, and have done steps without those that died."""
    found = SAID.findall(output)
    assert sorted(int(rank) for rank, *_ in found) == list(range(size)), output
    assert {tuple(others) for _, *others in found} == {(str(size), "True", found[0][3])}, output


def _serve(pipe):
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.poll(None)


@pytest.fixture
def port():
    """The port of a store. Its threads are in another process: ranks are forked from this one."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    server = fork.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    yield ours.recv()
    server.kill()
    server.join()


def test_a_door_through_torchs_store(port):
    """The rank at the door dies, and another one publishes its own."""

    def connected():
        return TCPStore("localhost", port, wait_for_workers=False)

    def come(me):
        me.wait_for(0)
        with ringreduce.join(connected(), timeout=60) as comm:
            return described(comm)

    def member(me):
        comm = ringreduce.init(me.number, me.members, connected(), timeout=60)
        assert comm.pending() == 0
        if me.number == 0:
            me.note()
            kill_self()
        with pytest.raises(ringreduce.PeerLost):
            while True:
                comm.barrier()
        with comm.shrink() as fewer:
            return grown_by(fewer, 2)

    found = Job(member, 3, come, 2).values(but=(0,))
    assert sorted(found[1:]) == [(rank, 4, 4.0) for rank in range(4)]


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    if why_not := Sshd.missing():
        pytest.skip(why_not)
    with Hosts(3, rate=None) as hosts, Sshd(hosts, tmp_path_factory.mktemp("ssh")) as started:
        started.hosts = hosts
        yield started


def by_ssh(ssh, *program):
    """Starts two ranks on each of two hosts, from a third one."""
    words = ["run", "--hosts", "host1:2,host2:2", "--restarts", "4", "--ssh", ssh.command, *map(str, program)]
    return ssh.hosts[0].popen(
        [sys.executable, "-m", "ringreduce", *words], env=environment(OMP_NUM_THREADS="1"), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["3", "0,2"])
def test_ringreduce_run_on_two_hosts(ssh, victims):
    """0,2: a rank of each host, the one at the door too."""
    run = by_ssh(ssh, PROGRAM, victims)
    said, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    check(said, 4)
    for victim in victims.split(","):
        assert (
            f"rank {victim} on host{1 + int(victim) // 2} was killed by SIGKILL; starting it again" in errors
        )


@pytest.mark.parametrize("lost", ["host1", *slowly("host2")])
def test_ringreduce_run_loses_a_host(ssh, lost, tmp_path):
    """Its connection ends, and with it all of its ranks. Nobody starts them again."""
    run = by_ssh(ssh, PROGRAM, "none", f"begun={tmp_path / 'begun'}")
    try:
        until = time.monotonic() + 100
        while not (tmp_path / "begun").exists():
            assert run.poll() is None and time.monotonic() < until, run.communicate()
            time.sleep(0.05)
        server = ssh.hosts[int(lost[-1])].processes[0].pid
        for session in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            os.kill(int(session), signal.SIGKILL)
        said, errors = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == 0, errors
    check(said, 2)
    assert f"{lost} failed" in errors


def agents(number, options, *program, meanwhile=None, lost=()):
    """What the agents of torchrun and their ranks print, when all have ended well. {i} is an agent's number."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(number), "--max-restarts", "2",
             *options.format(i=i, port=port).split(), *map(str, program)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(number)
    ]  # fmt: skip
    try:
        if meanwhile is not None:
            meanwhile(started)
        said = [agent.communicate(timeout=200)[0] for agent in started]
    finally:
        for agent in started:
            agent.terminate()
            agent.wait()
    for i, agent in enumerate(started):
        assert i in lost or agent.returncode == 0, "".join(said)
    return "".join(said)


STATIC = "--node-rank {i} --master-addr localhost --master-port {port} --nproc-per-node "


@pytest.mark.slow
@pytest.mark.parametrize("job", [(2, 1, "0"), (3, 1, "1"), (3, 1, "0,2"), (2, 2, "2")])
def test_one_of_several_agents_of_torchrun(job):
    """An agent restarts all of its own ranks."""
    number, each, victims = job
    check(agents(number, STATIC + str(each), PROGRAM, victims, "--here"), number * each)


@pytest.mark.slow
def test_the_agent_with_the_store_is_lost(tmp_path):
    """The others go on, though newcomers could not find them."""
    begun = tmp_path / "begun"

    def lose(started):
        until = time.monotonic() + 100
        while not begun.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        first = started[0].pid
        ranks = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (first, *map(int, ranks)):
            os.kill(pid, signal.SIGKILL)

    said = agents(3, STATIC + "1", PROGRAM, "none", "--here", f"begun={begun}", meanwhile=lose, lost=(0,))
    check(said, 2)


ALL_AGAIN = """
import os, pathlib, signal, sys, time
from ringreduce import elastic
comm = elastic.start(timeout=60)
comm.barrier()
died = pathlib.Path(sys.argv[1])
again = died.exists()
comm.barrier()
if not again:
    if comm.rank == 1:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)  # until the agent ends this rank
print(f"rank {comm.rank} of {comm.size} met again\\n", end="")
"""


@pytest.mark.slow
def test_agents_that_restart_all_ranks(tmp_path):
    """With a dynamic backend. The agents do not count alike: only one of them has seen a rank fail."""
    program = tmp_path / "program.py"
    program.write_text(ALL_AGAIN)
    options = "--rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id test"
    said = agents(2, options, program, tmp_path / "died")
    assert sorted(line for line in said.splitlines() if "met again" in line) == [
        "rank 0 of 2 met again", "rank 1 of 2 met again",
    ]  # fmt: skip
    assert said.count("exitcode") == 1, said  # the ranks met at the first attempt
