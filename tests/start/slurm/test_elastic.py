"""Elastic training under srun, with nothing set but what marks newcomers."""

from __future__ import annotations

import sys

import pytest
from cluster import Cluster, missing

from tests.training.elastic.test_launchers import PROGRAM, ROOT, check

why_not = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not is not None, reason=str(why_not)),
]
SRUN = "srun -N2 -n4 --ntasks-per-node=2 --no-kill --kill-on-bad-exit=0"


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as started:
        yield started


def batch(cluster, tmp_path, script):
    """What the ranks of a script with an allocation print."""
    job = tmp_path / "job.sh"
    job.write_text(f"#!/bin/bash\ntrain='{sys.executable} {PROGRAM}'\n{script}\nwait\n")
    done = cluster.run(
        ["salloc", "-N2", "-n6", "--no-kill", "bash", str(job)], timeout=170,
        PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1",
    )  # fmt: skip
    return done.stderr + done.stdout


@pytest.mark.parametrize("victims", ["3", "0,2"])
def test_tasks_that_start_again(cluster, tmp_path, victims):
    again = f'{SRUN} sh -c "$train {victims} || RINGREDUCE_NEWCOMER=yes exec $train {victims}"'
    check(batch(cluster, tmp_path, again), 4)


@pytest.mark.parametrize("victims", ["1", "0,1"])
def test_newcomers_that_are_another_step(cluster, tmp_path, victims):
    """0,1: all of the first host, at whose port the ranks met."""
    count = len(victims.split(","))
    script = f"""
        {SRUN} $train {victims} went-on={tmp_path}/went-on &
        until [ -e {tmp_path}/went-on ]; do sleep 0.1; done
        RINGREDUCE_NEWCOMER=yes srun -N1 -n{count} --overlap $train {victims}
    """
    check(batch(cluster, tmp_path, script), 4)
