"""Programs under srun and sbatch, on a Slurm cluster of two nodes, with nothing else set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, missing

from ringreduce.start import munge

why_not = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not is not None, reason=str(why_not)),
]

ROOT = Path(__file__).resolve().parents[3]
# All nodes are on one machine, and could share memory after all.
HOSTS = "import os, platform; os.environ['RINGREDUCE_HOST'] = platform.node()\n"
INIT = """
import ringreduce, numpy as np
with ringreduce.init(timeout=30) as comm:
    x = np.full(1000, comm.rank, 'float32')
    comm.all_reduce(x)
    print(comm.rank, comm.size, x[0], comm.transport, comm.hosts, sep='; ')
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group('ringreduce')
x = torch.full((1000,), float(dist.get_rank()))
dist.all_reduce(x)
print(dist.get_rank(), dist.get_world_size(), x[0].item(), sep='; ')
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as started:
        yield started


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(HOSTS + text)
    return [sys.executable, str(path)]


def said(done):
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line)


@pytest.mark.parametrize(
    ("where", "transport", "hosts"),
    [
        (["-N1", "-n3"], "shm", "[[0, 1, 2]]"),
        (["-N2", "-n2"], "tcp", "[[0], [1]]"),
        (["-N2", "-n4", "--distribution=block", "--ntasks-per-node=2"], "shm+tcp", "[[0, 1], [2, 3]]"),
        (["-N2", "-n2", "--mpi=pmi2"], "tcp", "[[0], [1]]"),
        (["-N2", "-n4", "--distribution=cyclic", "--ntasks-per-node=2"], "shm+tcp", "[[0, 2], [1, 3]]"),
    ],
)
def test_ranks_meet(cluster, tmp_path, where, transport, hosts):
    size = int(where[1][2:])
    lines = said(cluster.run(["srun", *where, *program(tmp_path, INIT)]))
    total = float(sum(range(size)))
    assert lines == [f"{rank}; {size}; {total}; {transport}; {hosts}" for rank in range(size)]


def test_torch_distributed(cluster, tmp_path):
    lines = said(cluster.run(["srun", "-N2", "-n4", *program(tmp_path, TORCH)]))
    assert lines == [f"{rank}; 4; 6.0" for rank in range(4)]


def test_both_in_one_program(cluster, tmp_path):
    lines = said(cluster.run(["srun", "-N2", "-n2", *program(tmp_path, TORCH + INIT)]))
    assert [line.split("; ")[:3] for line in lines] == [[str(rank), "2", "1.0"] for rank in (0, 0, 1, 1)]


def test_a_second_step_and_a_batch_script(cluster, tmp_path):
    """What a batch script runs itself is a job of one rank; what it starts by srun are ranks, in each step anew."""
    command = " ".join(program(tmp_path, INIT))
    script, output = tmp_path / "job.sh", tmp_path / "output"
    script.write_text(f"#!/bin/sh\n{command}\nsrun {command}\nsrun -n1 -N1 {command}\nsrun {command}\n")
    done = cluster.run(["sbatch", "-W", "-N2", "-n2", "-o", str(output), str(script)])
    assert done.returncode == 0, done.stderr + output.read_text()
    sizes = [line.split("; ")[1] for line in output.read_text().splitlines() if line.count("; ") == 4]
    assert sizes == ["1", "2", "2", "1", "2", "2"]


def test_a_shell_of_salloc(cluster, tmp_path):
    """It runs on a node, in a step that has the variables of a rank but is none."""
    command = " ".join(program(tmp_path, INIT))
    script = tmp_path / "typed"
    steps = f"srun {command} < /dev/null\nsrun -n1 -N1 {command} < /dev/null\n"
    script.write_text(f"echo step $SLURM_STEP_ID\n{command}\n{steps}")
    done = cluster.run(["sh", "-c", f"salloc -N2 -n2 < {script}"], SHELL="/bin/sh")
    assert "step 4294967290" in done.stdout, done.stdout + done.stderr
    sizes = [line.split("; ")[1] for line in done.stdout.splitlines() if line.count("; ") == 4]
    assert sizes == ["1", "2", "2", "1"], done.stderr


def test_trainer(cluster, tmp_path):
    tiny = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 4}
    options = [f"--{name}={value}" for name, value in tiny.items()]
    train = f"import sys, runpy; sys.argv[1:] = {options}; runpy.run_module('ringreduce.train', run_name='__main__')"
    done = cluster.run(["srun", "-N2", "-n4", *program(tmp_path, train)], timeout=170)
    assert done.returncode == 0, done.stderr
    assert ["ranks", "4"] in [line.split() for line in done.stdout.splitlines()]


def test_secret_and_place_of_the_user_come_first(cluster, tmp_path):
    lines = said(cluster.run(["srun", "-N2", "-n2", *program(tmp_path, INIT)], RINGREDUCE_SECRET="mine"))
    assert [line.split("; ")[1] for line in lines] == ["2", "2"]


def test_other_users_cannot_read_a_credential(cluster):
    credential = munge.encode(b"a secret")
    assert munge.decode(credential) == munge.decode(credential) == b"a secret"
    with pytest.raises(munge.MungeError, match="Invalid credential"):
        munge.decode(credential[:-8] + b"AAAAAAA:")
    decoding = "import sys; from ringreduce.start import munge; munge.decode(sys.argv[1].encode())"
    if os.getuid() == 0:
        done = subprocess.run(
            ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", decoding, credential.decode()],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert "MungeError: Unauthorized credential" in done.stderr
    theirs = (
        "import os; os.setuid(65534); from ringreduce.start import munge; print(munge.encode(b'x').decode())"
    )
    done = subprocess.run([sys.executable, "-c", theirs], capture_output=True, text=True, cwd=ROOT)
    if done.returncode == 0:
        with pytest.raises(munge.MungeError, match="Unauthorized credential"):
            munge.decode(done.stdout.strip().encode())
