"""Mistakes, ranks that disagree and ranks that die: every rank gets an error, and none hangs."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj
from ringreduce.jax import library
from tests import traced
from tests.processes import python


def error_of(function, *args):
    """The text of the error that a program ends with, wherever JAX raises it."""
    try:
        jax.block_until_ready(function(*args))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return "no error"


def disagreement(comm, kind):
    return error_of(jax.jit(traced.disagreeing(comm, rj, jnp.astype)[kind]), jnp.zeros(4))


@pytest.mark.parametrize("kind", traced.KINDS)
def test_ranks_that_disagree(kind):
    traced.both_ranks_are_named(ringreduce.run(disagreement, 2, kind))


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
    traced.report((text, again, rj.all_reduce(x, comm=smaller).tolist()))


@pytest.mark.parametrize("where", ["program", "loop"])
def test_killed_rank(where, capfd):
    traced.said_of_a_killed_rank(capfd, survivor, where)


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
    x = jnp.ones(3)
    calls = [
        *traced.mistaken(comm, rj, x),
        lambda: rj.all_reduce(x.astype("int4"), comm=comm),
        lambda: rj.all_reduce(jax.random.key(0), comm=comm),
        lambda: rj.all_reduce("words", comm=comm),
    ]
    return traced.errors_of(map(jax.jit, calls)), rj.all_reduce(x, comm=comm).tolist()


OWN_MISTAKES = [("TypeError", "x has dtype int4"), ("TypeError", "x has dtype key<"), ("TypeError", "words")]


def test_mistakes_leave_the_communicator_usable():
    for found, after in ringreduce.run(mistakes, 2):
        traced.errors_are(found, [*traced.MISTAKES, *OWN_MISTAKES])
        assert not any("\n" in line for line in found)
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
    run = python("-c", program)
    assert run.stderr.splitlines()[-1].endswith("pip install 'ringreduce[jax]'")


@pytest.mark.parametrize("version", ["0.4.38", "0.5.3", "unknown"])
def test_jax_that_is_too_old(monkeypatch, version):
    monkeypatch.setattr(jax, "__version__", version)
    with pytest.raises(RuntimeError, match=rf"needs jax 0.6 or later; this is jax {version}: pip install"):
        library.check()
