"""Elastic training under launchers: a rank is killed, the others go on, and it comes back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slowly

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("launched.py")
SAID = re.compile(r"rank (\d+) of (\d+); went on without: (\w+); (\w+)")
pytestmark = pytest.mark.timeout(150)


def check(output, size):
    """That all ranks of the last group have printed the same state, and have done steps without those that died."""
    found = SAID.findall(output)
    assert sorted(int(rank) for rank, *_ in found) == list(range(size)), output
    assert {tuple(others) for _, *others in found} == {(str(size), "True", found[0][3])}, output


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def agents(number, options, *program):
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
        said = [agent.communicate(timeout=140)[0] for agent in started]
    finally:
        for agent in started:
            agent.terminate()
            agent.wait()
    assert [agent.returncode for agent in started] == [0] * number, "".join(said)
    return "".join(said)


STATIC = "--node-rank {i} --master-addr localhost --master-port {port} --nproc-per-node "


@pytest.mark.parametrize("job", [(2, 1, "0"), *slowly((3, 1, "1"), (3, 1, "0,2"), (2, 2, "2"))])
def test_one_of_several_agents_of_torchrun(job):
    """An agent restarts all of its own ranks."""
    number, each, victims = job
    check(agents(number, STATIC + str(each), PROGRAM, victims, "--here"), number * each)


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
