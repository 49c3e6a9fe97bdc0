"""Programs that are started as users start them: the example, and all ways to end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 250  # seconds; importing JAX and compiling take several, on cores that are free
pytestmark = pytest.mark.timeout(600)
START = """
import os, signal, threading, time
import jax, jax.numpy as jnp, ringreduce, ringreduce.jax as rj
comm = ringreduce.init()
call = jax.jit(rj.all_reduce)
x = jnp.ones(4)
call(x).block_until_ready()
"""


def run(ranks, *words):
    command = [sys.executable, "-m", "ringreduce", "run", "-n", str(ranks), sys.executable, *words]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


def losses(ranks):
    done = run(ranks, "examples/jax_data_parallel.py", "--steps", "5")
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"loss (\S+)", done.stdout)]


def test_example_trains_alike_on_one_rank_and_on_two():
    alone = losses(1)
    assert len(alone) == 5
    assert losses(2) == pytest.approx(alone, rel=1e-4)


def test_program_of_the_documentation(tmp_path):
    text = (ROOT / "docs/frameworks.md").read_text()
    programs = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (program,) = (one for one in programs if "ringreduce.jax" in one)
    (tmp_path / "train.py").write_text(program)
    done = run(2, str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    weights = [float(number) for number in re.findall(r"[\d.]+", done.stdout)]
    assert weights[0] < weights[1] < weights[2] < weights[3]  # on their way to 0, 1, 2 and 3


def test_program_that_ends_without_waiting():
    """Its last calls run in the background; that they wait for rank 1 keeps rank 0 from ending first."""
    program = START + "time.sleep(comm.rank)\nfor _ in range(20): x = call(x) / 2\n"
    done = run(2, "-c", program)
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
    """Without a launcher, which would end the other rank."""
    program = INTERRUPT.replace("WAIT", str(size))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | place | {"RANK": str(rank), "WORLD_SIZE": "2", "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        interrupted, complaints = processes[1].communicate(timeout=PATIENCE)
        assert "rank 1: KeyboardInterrupt" in interrupted
        assert "Exception ignored" not in complaints
        assert re.search(
            "rank 0: (Jax|Xla)RuntimeError .*rank 1", processes[0].communicate("\n", timeout=PATIENCE)[0]
        )
    finally:
        for process in processes:
            process.kill()
