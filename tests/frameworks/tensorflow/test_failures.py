"""Mistakes, ranks that disagree and ranks that die: every rank gets an error, and none hangs."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as rt
from ringreduce.tensorflow import library
from tests import traced
from tests.processes import python


def error_of(function, *args):
    """The kind and the text of the error that a call ends with."""
    try:
        function(*args)
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagreement(comm, kind, compiled):
    program = traced.disagreeing(comm, rt, tf.cast)[kind]
    return error_of(tf.function(program) if compiled else program, tf.zeros(4))


@pytest.mark.parametrize("kind", traced.KINDS)
def test_ranks_that_disagree(kind):
    traced.both_ranks_are_named(ringreduce.run(disagreement, 2, kind, kind != "op"))


def survivor(comm, where):
    """Rank 1 dies in front of its third call; the others are in the call."""
    x = tf.ones(4)
    call = tf.function(lambda x: rt.all_reduce(x, comm=comm))
    if where == "eager":
        call = lambda x: rt.all_reduce(x, comm=comm)  # noqa: E731

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = rt.all_reduce(x, comm=comm)
        return x

    call(x)
    if comm.rank == 1:
        call(x)
        os.kill(os.getpid(), signal.SIGKILL)
    text = error_of(loop if where == "loop" else lambda x: call(call(x)), x)
    again = error_of(call, x)
    smaller = comm.shrink()
    traced.report((text, again, rt.all_reduce(x, comm=smaller).numpy().tolist()))


@pytest.mark.parametrize("where", ["eager", "function", "loop"])
def test_killed_rank(where, capfd):
    for line in traced.said_of_a_killed_rank(capfd, survivor, where):
        assert line.count("AbortedError") >= 2


def late(comm):
    """Rank 1 makes no call."""
    if comm.rank == 1:
        return "no call"
    return error_of(tf.function(lambda x: rt.all_reduce(x, comm=comm)), tf.ones(4))


def test_rank_that_does_not_come():
    text, _ = ringreduce.run(late, 2, timeout=2)
    assert text.startswith(("DeadlineExceededError", "AbortedError"))  # it may have ended before the deadline
    assert "rank 1" in text


def rank_that_leaves(comm):
    x = tf.ones(4)
    rt.all_reduce(x, comm=comm)
    if comm.rank == 0:
        comm.close()
    return error_of(tf.function(lambda x: rt.all_reduce(x, comm=comm)), x)


def test_closed_communicators():
    own, other = ringreduce.run(rank_that_leaves, 2)
    assert own.startswith("FailedPreconditionError")
    assert "closed" in own
    assert "rank 0" in other


def mistakes(comm):
    x = tf.ones(3)
    calls = [
        *traced.mistaken(comm, rt, x),
        lambda: rt.all_reduce(tf.quantization.quantize(x, 0, 1, tf.qint8)[0], comm=comm),
        lambda: rt.all_reduce("words", comm=comm),
        lambda: rt.recv(tf.TensorSpec([None]), 0, comm=comm),
        lambda: tf.function(lambda x: rt.all_reduce(x, comm=comm), jit_compile=True)(x),
    ]
    found = traced.errors_of(calls)
    rows = tf.function(lambda x: rt.reduce_scatter(x, comm=comm), input_signature=[tf.TensorSpec([None])])
    return found, error_of(rows, x), rt.all_reduce(x, comm=comm).numpy().tolist()


OWN_MISTAKES = [
    ("TypeError", "x has dtype qint8"), ("TypeError", "x has dtype string"), ("ValueError", "known shape"),
    ("ValueError", "XLA cannot compile all_reduce"),
]  # fmt: skip


def test_mistakes_leave_the_communicator_usable():
    for found, later, after in ringreduce.run(mistakes, 2):
        traced.errors_are(found, [*traced.MISTAKES, *OWN_MISTAKES])
        assert later.startswith("InvalidArgumentError")
        assert "x has 3 rows, which are not divisible among 2 ranks" in later
        assert after == [2.0, 2.0, 2.0]


def test_without_tensorflow():
    program = "import sys; sys.modules['tensorflow'] = None; import ringreduce.tensorflow"
    run = python("-c", program)
    assert run.stderr.splitlines()[-1].endswith("pip install 'ringreduce[tensorflow]'")


def test_ringreduce_alone_does_not_import_tensorflow():
    program = "import sys, ringreduce; assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    assert python("-c", program).returncode == 0


@pytest.mark.parametrize("version", ["1.15.0", "2.15.1", "unknown"])
def test_tensorflow_that_is_too_old(monkeypatch, version):
    monkeypatch.setattr(tf, "__version__", version)
    message = rf"needs tensorflow 2.16 or later; this is tensorflow {version}: pip install"
    with pytest.raises(RuntimeError, match=message):
        library.check()


def test_library_that_does_not_fit(monkeypatch, tmp_path):
    broken = tmp_path / "libringreduce_tensorflow.so"
    broken.write_text("not a library\nof two lines")
    monkeypatch.setattr(library.building, "built", lambda recipe: broken)
    library.loaded.cache_clear()
    try:
        with pytest.raises(
            RuntimeError, match=r"does not fit this tensorflow \S+ \(.*\)\. Install"
        ) as raised:
            library.loaded()
    finally:
        library.loaded.cache_clear()
    assert "\n" not in str(raised.value)
