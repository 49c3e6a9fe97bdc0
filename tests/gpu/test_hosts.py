"""Ranks of several hosts, without NCCL: the CPU's collectives, over the group's own transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs_libfabric, slowly

from .ranks import EMULATED_ONLY

ROOT = Path(__file__).resolve().parents[2]

pytestmark = EMULATED_ONLY


def answers(hosts, what, *dead, transport="auto", **variables):
    """What each rank prints; those with the same letter share a host."""
    settings = {
        "PYTHONPATH": str(ROOT), "RINGREDUCE_SECRET": "a test's", "RINGREDUCE_EMULATED_BLOCKS": "16",
        "RINGREDUCE_NCCL_LIBRARY": "/nowhere", **variables,
    }  # fmt: skip
    place = f"gpu-{os.getpid()}-{os.urandom(4).hex()}"
    program = [sys.executable, "-m", "tests.gpu.programs_of_hosts"]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(len(hosts)), place, transport, what],
            cwd=ROOT, env={**os.environ, **settings, "RINGREDUCE_HOST": host},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    said = []
    try:
        for rank, process in enumerate(ranks):
            out, errors = process.communicate(timeout=200)
            assert process.returncode == (-signal.SIGKILL if rank in dead else 0), f"rank {rank}: {errors}"
            said.append(out.splitlines())
    finally:
        for process in ranks:
            process.kill()
    return said


@pytest.mark.parametrize("hosts", ["aab", *slowly("ab", "abab")])
def test_every_collective(hosts):
    answers(hosts, "collectives")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", *slowly("shm+tcp")])
def test_the_transport_does_not_matter(transport):
    answers("aabb", "collectives", transport=transport)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["aab", *slowly("aabb")])
def test_slices(hosts):
    """What the host's memory does not hold at once."""
    answers(hosts, "large")


@pytest.mark.slow
def test_calls_return_before_their_values_have_come():
    answers("aab", "streams")


@pytest.mark.slow
def test_reproducible_groups_have_the_cpus_bits():
    answers("aabb", "reproducible")


def test_different_calls():
    answers("aab", "mismatch")


def test_a_rank_of_another_host_dies():
    answers("aab", "killed", 2)


@pytest.mark.slow
def test_a_rank_that_does_not_come():
    answers("aab", "late")


def test_graphs_are_refused():
    answers("ab", "captured")


@pytest.mark.slow
def test_a_rank_leaves_in_the_middle():
    answers("aabb", "leaves")


def test_messages_go_through_cpu_memory():
    answers("ab", "messages")


@pytest.mark.slow
def test_which_transport_is_wanted():
    """NCCL, if it is asked for by name, is not replaced."""
    said = answers("ab", "refused", RINGREDUCE_GPU_TRANSPORT="nccl")
    assert all("NCCL cannot be loaded" in lines[-1] for lines in said), said
    answers("ab", "collectives", RINGREDUCE_GPU_TRANSPORT="cuda")


@pytest.mark.slow
@needs_libfabric
def test_fabrics_carry_no_gpu_memory():
    answers("aab", "refused_by_fabrics", transport="shm+ofi")
