"""Mistakes, ranks that disagree and ranks that die: every rank gets an error, and none hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj
from ringreduce.jax import library


def error_of(function, *args):
    """The text of the error that a program ends with, wherever JAX raises it."""
    try:
        jax.block_until_ready(function(*args))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return "no error"


def disagreement(comm, kind):
    x = jnp.zeros(4)
    programs = {
        "op": lambda x: rj.all_reduce(x, ("sum", "max")[comm.rank], comm=comm),
        "shape": lambda x: rj.all_reduce(x[: 3 + comm.rank], comm=comm),
        "dtype": lambda x: rj.all_reduce(x.astype(("float32", "int32")[comm.rank]), comm=comm),
        "root": lambda x: rj.all_reduce(rj.broadcast(x, comm.rank, comm=comm), comm=comm),
        "call": lambda x: (rj.all_gather, rj.all_to_all)[comm.rank](x, comm=comm),
        "message": lambda x: rj.sendrecv(x, x[:2], dest=1 - comm.rank, source=1 - comm.rank, comm=comm),
    }
    return error_of(jax.jit(programs[kind]), x)


@pytest.mark.parametrize("kind", ["op", "shape", "dtype", "root", "call", "message"])
def test_ranks_that_disagree(kind):
    for text in ringreduce.run(disagreement, 2, kind):
        assert "ringreduce" in text
        assert "rank 0" in text
        assert "rank 1" in text


def survivor(comm, where):
    """Rank 1 dies in front of its third call; the others are in the call."""
    x = jnp.ones(4)
    call = jax.jit(lambda x: rj.all_reduce(x, comm=comm))
    many = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: rj.all_reduce(x, comm=comm), x))
    call(x).block_until_ready()
    if comm.rank == 1:
        call(x).block_until_ready()
        os.kill(os.getpid(), signal.SIGKILL)
    text = error_of(many if where == "loop" else lambda x: call(call(x)), x)
    again = error_of(call, x)
    smaller = comm.shrink()
    return text, again, rj.all_reduce(x, comm=smaller).tolist()


def outcomes(comm, where):
    """Of the survivors: rank 1 cannot return anything, so its parent is told nothing but that it was killed."""
    os.write(1, f"{survivor(comm, where)}\n".encode())  # in one piece: both survivors write


@pytest.mark.parametrize("where", ["program", "loop"])
def test_killed_rank(where, capfd):
    with pytest.raises(ringreduce.RankFailed) as raised:
        ringreduce.run(outcomes, 3, where)
    assert raised.value.rank == 1
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.count("rank 1 died") == 2
        assert line.endswith("[2.0, 2.0, 2.0, 2.0])")


def rank_that_leaves(comm):
    x = jnp.ones(4)
    rj.all_reduce(x, comm=comm).block_until_ready()
    if comm.rank == 0:
        comm.close()
    return error_of(jax.jit(lambda x: rj.all_reduce(x, comm=comm)), x)


def test_closed_communicators():
    own, other = ringreduce.run(rank_that_leaves, 2)
    assert "closed" in own
    assert "rank 0" in other


def mistakes(comm):
    found = []
    x = jnp.ones(3)
    calls = [
        lambda: rj.all_reduce(x, "mean", comm=comm),
        lambda: rj.all_reduce(x, "band", comm=comm),
        lambda: rj.all_reduce(x > 0, "avg", comm=comm),
        lambda: rj.all_reduce(x.astype("int4"), comm=comm),
        lambda: rj.all_reduce(jax.random.key(0), comm=comm),
        lambda: rj.all_reduce("words", comm=comm),
        lambda: rj.all_reduce(x, comm=3),
        lambda: rj.all_reduce(x),
        lambda: rj.reduce_scatter(x, comm=comm),
        lambda: rj.all_to_all(x, comm=comm),
        lambda: rj.all_gather(1.0, comm=comm),
        lambda: rj.broadcast(x, 2, comm=comm),
        lambda: rj.send(x, -1, comm=comm),
        lambda: rj.recv(x, None, comm=comm),
        lambda: rj.recv(x, 0, tag=1 << 40, comm=comm),
    ]
    for call in calls:
        try:
            jax.jit(call)()
        except (TypeError, ValueError, ringreduce.Error) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found, rj.all_reduce(x, comm=comm).tolist()


MISTAKES = [
    ("ValueError", "op must be one of"), ("ValueError", "op 'band' is not defined for float32"),
    ("ValueError", "op 'avg' is not defined for bool"), ("TypeError", "x has dtype int4"),
    ("TypeError", "x has dtype key<"), ("TypeError", "words"), ("TypeError", "comm must be"),
    ("Error", "call ringreduce.init() first"), ("ValueError", "3 rows"), ("ValueError", "3 rows"),
    ("ValueError", "at least one axis"), ("ValueError", "root must be a rank from 0 to 1"),
    ("ValueError", "dest must be a rank"), ("TypeError", "source must be a rank"), ("ValueError", "tag must be"),
]  # fmt: skip


def test_mistakes_leave_the_communicator_usable():
    for found, after in ringreduce.run(mistakes, 2):
        assert len(found) == len(MISTAKES), found
        for line, (kind, part) in zip(found, MISTAKES, strict=True):
            assert line.startswith(kind)
            assert part in line
            assert "\n" not in line
        assert after == [2.0, 2.0, 2.0]


def compiled_for_gpu(comm):
    traced = jax.jit(lambda x: rj.all_reduce(x, comm=comm)).trace(jnp.ones(3))
    try:
        traced.lower(lowering_platforms=("cuda",))
    except ValueError as error:
        return str(error)
    return "no error"


def test_arrays_on_a_gpu():
    (text,) = ringreduce.run(compiled_for_gpu, 1)
    assert "takes arrays on the CPU, but all_reduce is compiled for cuda" in text


def test_without_jax():
    program = "import sys; sys.modules['jax'] = None; import ringreduce.jax"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("pip install 'ringreduce[jax]'")


@pytest.mark.parametrize("version", ["0.4.38", "0.5.3", "unknown"])
def test_jax_that_is_too_old(monkeypatch, version):
    monkeypatch.setattr(jax, "__version__", version)
    with pytest.raises(RuntimeError, match=rf"needs jax 0.6 or later; this is jax {version}: pip install"):
        library.check()
