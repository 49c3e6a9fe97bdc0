"""`ringreduce diagnose` for a job that hangs on two hosts, which have processes of their own and OpenSSH's server."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.network.clusters import Sshd, environment
from bench.network.hosts import Hosts
from ringreduce.diagnosis import stacks

ROOT = Path(__file__).resolve().parents[2]

why_not = Sshd.missing()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))

HANGS = """
import time
import numpy as np
import ringreduce
def load_next_batch():
    time.sleep(100)
comm = ringreduce.init(timeout=100)
comm.barrier()
if comm.rank == 2:
    load_next_batch()
comm.all_reduce(np.ones(7, "float32"))
"""
SENTENCE = r"rank 2 has not called #\d+, all_reduce\(float32\[7\], sum\).*; ranks 0 and 1 wait for it, for "
STACK = "and is in load_next_batch at hangs.py:6"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of three ranks, started by ssh, of which the last one hangs. Returns what runs our commands on host0."""
    folder = tmp_path_factory.mktemp("ssh")
    program = folder / "hangs.py"
    program.write_text(HANGS)
    with Hosts(3, rate=None) as hosts, Sshd(hosts, folder, own_processes=True) as ssh:

        def ringreduce(*words):
            return hosts[0].popen(
                [sys.executable, "-m", "ringreduce", *map(str, words)], cwd=ROOT, env=environment(), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        run = ringreduce("run", "--hosts", "host1:1,host2:2", "--ssh", ssh.command, program)
        yield ringreduce, ssh
        run.terminate()
        run.communicate(timeout=200)


def until_it_waits(diagnose):
    """Returns the end of a command, once a rank has waited for long enough."""
    end = time.monotonic() + 60
    while True:
        command = diagnose()
        said, errors = command.communicate(timeout=200)
        if command.returncode == 3:
            return said, errors
        assert command.returncode == 0 and time.monotonic() < end, said + errors


def check(said):
    assert "a job of 3 ranks; 3 of its processes are known" in said
    assert re.search(SENTENCE, said), said
    assert STACK in said or not stacks.py_spy(), said


def test_by_ssh(job):
    ringreduce, ssh = job
    said, errors = until_it_waits(
        lambda: ringreduce("diagnose", "--hosts", "host1,host2", "--ssh", ssh.command)
    )
    check(said)
    assert errors == ""


def test_a_host_that_does_not_answer(job):
    """What is known of the others is said."""
    ringreduce, ssh = job
    until_it_waits(lambda: ringreduce("diagnose", "--hosts", "host1,host2", "--ssh", ssh.command))
    command = ringreduce("diagnose", "--hosts", "host1,nowhere", "--ssh", ssh.command)
    said, errors = command.communicate(timeout=200)
    assert "ringreduce: nowhere does not answer, so nothing is known of its ranks" in errors
    assert "a job of 3 ranks; 1 of its processes are known" in said
    assert command.returncode == 3 and "runs on another host: run `ringreduce diagnose` there, too" in said


def test_by_files(job, tmp_path):
    """As the page has it: each host saves what it sees."""
    ringreduce, ssh = job

    def together():
        files = [tmp_path / f"{host}.json" for host in ("host1", "host2")]
        for file in files:
            words = f"cd {ROOT} && {sys.executable} -m ringreduce diagnose --save {file}"
            done = ssh.run(file.stem, words)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"{1 if file.stem == 'host1' else 2} processes: {file}\n"
        return ringreduce("diagnose", *files)

    check(until_it_waits(together)[0])


def test_hosts_and_files_are_not_mixed(job):
    ringreduce, _ = job
    command = ringreduce("diagnose", "--hosts", "host1", "a.json")
    assert "--hosts: give hosts or files, not both" in command.communicate(timeout=200)[1]
    assert command.returncode == 2
