"""Programs that are started as users start them: the example, and all ways to end."""

from __future__ import annotations

import sys

import pytest

from tests import traced
from tests.processes import on_ranks_of_a_command

pytest.importorskip("jax")

CPU = {"JAX_PLATFORMS": "cpu"}
pytestmark = pytest.mark.timeout(600)
START = """
import os, signal, threading, time
import jax, jax.numpy as jnp, ringreduce, ringreduce.jax as rj
comm = ringreduce.init()
call = jax.jit(rj.all_reduce)
x = jnp.ones(4)
call(x).block_until_ready()
"""


def losses(ranks):
    return traced.losses(ranks, "examples/jax_data_parallel.py", "--steps", 5, **CPU)


def test_example_trains_alike_on_one_rank_and_on_two():
    alone = losses(1)
    assert len(alone) == 5
    assert losses(2) == pytest.approx(alone, rel=1e-4)


def test_program_of_the_documentation(tmp_path):
    traced.weights_of_the_documentation(traced.documented(tmp_path, "ringreduce.jax", **CPU))


def test_program_that_ends_without_waiting():
    """Its last calls run in the background; that they wait for rank 1 keeps rank 0 from ending first."""
    program = START + "time.sleep(comm.rank)\nfor _ in range(20): x = call(x) / 2\n"
    words = "-n", 2, sys.executable, "-c", program
    done = on_ranks_of_a_command(*words, timeout=traced.PATIENCE, **CPU)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


INTERRUPT = (
    START
    + """
slow = jax.jit(lambda x: jnp.sort(jnp.sin(jnp.arange(WAIT) + x[0])).sum() + rj.all_reduce(x))
slow(x).block_until_ready()
if comm.rank == 1:
    print("ready", flush=True)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    input()  # until rank 1 has ended
try:
    slow(x).block_until_ready()
    slow(x).block_until_ready()  # rank 1 may have sent its part of the first one
except BaseException as error:
    print(f"rank {comm.rank}: {type(error).__name__} {error}", flush=True)
    if comm.rank == 1:
        raise
"""
)


@pytest.mark.parametrize("size", [8, 1 << 20], ids=["in the main thread", "in the background"])
def test_interrupted_rank(size):
    traced.rank_1_was_interrupted(*traced.said_by_both(INTERRUPT.replace("WAIT", str(size)), "\n", **CPU))
