"""Mistakes, ranks that disagree and ranks that die: every rank gets an error, and none hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as rt
from ringreduce.tensorflow import library


def error_of(function, *args):
    """The kind and the text of the error that a call ends with."""
    try:
        function(*args)
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagreement(comm, kind, compiled):
    x = tf.zeros(4)
    programs = {
        "op": lambda x: rt.all_reduce(x, ("sum", "max")[comm.rank], comm=comm),
        "shape": lambda x: rt.all_reduce(x[: 3 + comm.rank], comm=comm),
        "dtype": lambda x: rt.all_reduce(tf.cast(x, ("float32", "int32")[comm.rank]), comm=comm),
        "root": lambda x: rt.all_reduce(rt.broadcast(x, comm.rank, comm=comm), comm=comm),
        "call": lambda x: (rt.all_gather, rt.all_to_all)[comm.rank](x, comm=comm),
        "message": lambda x: rt.sendrecv(x, x[:2], dest=1 - comm.rank, source=1 - comm.rank, comm=comm),
    }
    return error_of(tf.function(programs[kind]) if compiled else programs[kind], x)


@pytest.mark.parametrize("kind", ["op", "shape", "dtype", "root", "call", "message"])
def test_ranks_that_disagree(kind):
    for text in ringreduce.run(disagreement, 2, kind, kind != "op"):
        assert "ringreduce: " in text
        assert "rank 0" in text
        assert "rank 1" in text


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
    return text, again, rt.all_reduce(x, comm=smaller).numpy().tolist()


def outcomes(comm, where):
    """Of the survivors: rank 1 cannot return anything, so its parent is told nothing but that it was killed."""
    os.write(1, (repr(survivor(comm, where)) + "\n").encode())  # in one piece: both survivors write


@pytest.mark.parametrize("where", ["eager", "function", "loop"])
def test_killed_rank(where, capfd):
    with pytest.raises(ringreduce.RankFailed) as raised:
        ringreduce.run(outcomes, 3, where)
    assert raised.value.rank == 1
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("(")]
    assert len(lines) == 2
    for line in lines:
        assert line.count("rank 1 died") >= 2
        assert line.count("AbortedError") >= 2
        assert line.endswith("[2.0, 2.0, 2.0, 2.0])")


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
    found = []
    x = tf.ones(3)
    calls = [
        lambda: rt.all_reduce(x, "mean", comm=comm),
        lambda: rt.all_reduce(x, "band", comm=comm),
        lambda: rt.all_reduce(x > 0, "avg", comm=comm),
        lambda: rt.all_reduce(tf.quantization.quantize(x, 0, 1, tf.qint8)[0], comm=comm),
        lambda: rt.all_reduce("words", comm=comm),
        lambda: rt.all_reduce(x, comm=3),
        lambda: rt.all_reduce(x),
        lambda: rt.reduce_scatter(x, comm=comm),
        lambda: rt.all_to_all(x, comm=comm),
        lambda: rt.all_gather(1.0, comm=comm),
        lambda: rt.broadcast(x, 2, comm=comm),
        lambda: rt.send(x, -1, comm=comm),
        lambda: rt.recv(x, None, comm=comm),
        lambda: rt.recv(x, 0, tag=1 << 40, comm=comm),
        lambda: rt.recv(tf.TensorSpec([None]), 0, comm=comm),
        lambda: tf.function(lambda x: rt.all_reduce(x, comm=comm), jit_compile=True)(x),
    ]
    for call in calls:
        try:
            call()
        except (TypeError, ValueError, ringreduce.Error) as error:
            found.append(f"{type(error).__name__}: {error}")
    rows = tf.function(lambda x: rt.reduce_scatter(x, comm=comm), input_signature=[tf.TensorSpec([None])])
    return found, error_of(rows, x), rt.all_reduce(x, comm=comm).numpy().tolist()


MISTAKES = [
    ("ValueError", "op must be one of"), ("ValueError", "op 'band' is not defined for float32"),
    ("ValueError", "op 'avg' is not defined for bool"), ("TypeError", "x has dtype qint8"),
    ("TypeError", "x has dtype string"), ("TypeError", "comm must be"),
    ("Error", "call ringreduce.init() first"), ("ValueError", "3 rows"), ("ValueError", "3 rows"),
    ("ValueError", "at least one axis"), ("ValueError", "root must be a rank from 0 to 1"),
    ("ValueError", "dest must be a rank"), ("TypeError", "source must be a rank"), ("ValueError", "tag must be"),
    ("ValueError", "known shape"), ("ValueError", "XLA cannot compile all_reduce"),
]  # fmt: skip


def test_mistakes_leave_the_communicator_usable():
    for found, later, after in ringreduce.run(mistakes, 2):
        assert len(found) == len(MISTAKES), found
        for line, (kind, part) in zip(found, MISTAKES, strict=True):
            assert line.startswith(kind)
            assert part in line
        assert later.startswith("InvalidArgumentError")
        assert "x has 3 rows, which are not divisible among 2 ranks" in later
        assert after == [2.0, 2.0, 2.0]


def test_without_tensorflow():
    program = "import sys; sys.modules['tensorflow'] = None; import ringreduce.tensorflow"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("pip install 'ringreduce[tensorflow]'")


def test_ringreduce_alone_does_not_import_tensorflow():
    program = "import sys, ringreduce; assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


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
