"""Programs that are started as users start them: the example, and Ctrl-C."""

from __future__ import annotations

import pytest

from tests import traced

pytest.importorskip("tensorflow")

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
pytestmark = pytest.mark.timeout(600)


def losses(ranks):
    return traced.losses(ranks, "examples/keras_data_parallel.py", "--epochs", 3, **QUIET)


def test_example_trains_alike_on_one_rank_and_on_two():
    alone = losses(1)
    assert len(alone) == 3
    assert alone[2] < alone[0]
    assert losses(2) == pytest.approx(alone, rel=1e-4)


def test_program_of_the_documentation(tmp_path):
    traced.weights_of_the_documentation(traced.documented(tmp_path, "@tf.function", **QUIET))


def test_keras_program_of_the_documentation(tmp_path):
    before = "import numpy\nx, y = numpy.ones((128, 32), 'float32'), numpy.ones((128, 1), 'float32')\n"
    printed = traced.documented(tmp_path, "data_parallel", before, **QUIET)
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


def said(where, rank_0=""):
    return traced.said_by_both(INTERRUPT.replace("WHERE", repr(where)), rank_0, **QUIET)


@pytest.mark.parametrize("where", ["eager", "function", "horovod"])
def test_interrupted_rank(where):
    traced.rank_1_was_interrupted(*said(where, "\n"))


def test_signal_that_the_program_handles():
    """A handler that raises nothing, such as one that stops after the next checkpoint, ends no call."""
    other, own, _ = said("handled")
    assert "rank 1: no error [1]" in own
    assert "rank 0: no error []" in other
