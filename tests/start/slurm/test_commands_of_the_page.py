"""The commands of docs/running.md that need Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster import Cluster, missing

from tests.start.running import page

why_not = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not is not None, reason=str(why_not)),
]


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as started:
        yield started


@pytest.mark.parametrize("block", [block for block in page.SHELL if block.where == "under slurm"])
def test_under_slurm(block, tmp_path, cluster):
    page.write_files(tmp_path)
    program = tmp_path / "train.py"
    # All nodes are on one machine, and could share memory after all.
    program.write_text(
        "import os, platform; os.environ['RINGREDUCE_HOST'] = platform.node()\n" + program.read_text()
    )
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    script = f"cd {tmp_path}; PATH={path}; {block.text}"
    done = cluster.run(["sh", "-ec", script], SBATCH_WAIT="1", PYTHONPATH=str(page.ROOT))
    assert done.returncode == 0, done.stderr
    block.check(done.stdout + "".join(log.read_text() for log in tmp_path.glob("*.log")))
