"""Programs that are started as users start them: the example, and Ctrl-C."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

ROOT = Path(__file__).resolve().parents[3]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
PATIENCE = 250  # seconds; importing TensorFlow takes several, on cores that are free
pytestmark = pytest.mark.timeout(600)


def run(ranks, *words):
    command = [sys.executable, "-m", "ringreduce", "run", "-n", str(ranks), sys.executable, *words]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True, timeout=PATIENCE
    )


def losses(ranks):
    done = run(ranks, "examples/keras_data_parallel.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"loss (\S+)", done.stdout)]


def test_example_trains_alike_on_one_rank_and_on_two():
    alone = losses(1)
    assert len(alone) == 3
    assert alone[2] < alone[0]
    assert losses(2) == pytest.approx(alone, rel=1e-4)


def documented(tmp_path, word, before=""):
    """What the only program of the page with this word prints on two ranks."""
    text = (ROOT / "docs/frameworks.md").read_text()
    programs = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (program,) = (one for one in programs if word in one)
    (tmp_path / "train.py").write_text(before + program)
    done = run(2, str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_program_of_the_documentation(tmp_path):
    weights = [float(number) for number in re.findall(r"\d\.\d+", documented(tmp_path, "@tf.function"))]
    assert weights[0] < weights[1] < weights[2] < weights[3]  # on their way to 0, 1, 2 and 3


def test_keras_program_of_the_documentation(tmp_path):
    before = "import numpy\nx, y = numpy.ones((128, 32), 'float32'), numpy.ones((128, 1), 'float32')\n"
    printed = documented(tmp_path, "data_parallel", before)
    assert printed.count("2/2") >= 2  # both ranks make two steps
    assert "loss" in printed


INTERRUPT = """
import os, signal, threading
import tensorflow as tf, ringreduce, ringreduce.tensorflow as rt
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell's background job ignores it
comm = ringreduce.init()
call = rt.all_reduce if WHERE == "eager" else tf.function(lambda x: rt.all_reduce(x))
if WHERE == "horovod":
    import ringreduce.horovod.tensorflow as hvd
    hvd.init(comm)
    call = tf.function(lambda x: hvd.allreduce(x, name="x"))
x = tf.ones(4)
call(x)
stopped = []
if WHERE == "handled":
    signal.signal(signal.SIGINT, lambda *_: stopped.append(comm.rank))
if comm.rank == 1:
    print("ready", flush=True)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
elif WHERE == "handled":
    import time
    time.sleep(2)
else:
    input()  # until rank 1 has ended
try:
    call(x)
    call(x)  # rank 1 may have sent its part of the first one
    print(f"rank {comm.rank}: no error {stopped}", flush=True)
except BaseException as error:
    print(f"rank {comm.rank}: {type(error).__name__} {error}", flush=True)
    if comm.rank == 1:
        raise
"""


def started(where):
    """Two ranks without a launcher, which would end the other one."""
    program = INTERRUPT.replace("WHERE", repr(where))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | QUIET | place | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["eager", "function", "horovod"])
def test_interrupted_rank(where):
    processes = started(where)
    try:
        interrupted, complaints = processes[1].communicate(timeout=PATIENCE)
        assert "rank 1: KeyboardInterrupt" in interrupted
        assert "Exception ignored" not in complaints
        assert re.search(r"rank 0: \w+Error .*rank 1", processes[0].communicate("\n", timeout=PATIENCE)[0])
    finally:
        for process in processes:
            process.kill()


def test_signal_that_the_program_handles():
    """A handler that raises nothing, such as one that stops after the next checkpoint, ends no call."""
    processes = started("handled")
    try:
        assert "rank 1: no error [1]" in processes[1].communicate(timeout=PATIENCE)[0]
        assert "rank 0: no error []" in processes[0].communicate(timeout=PATIENCE)[0]
    finally:
        for process in processes:
            process.kill()
