"""Programs do not keep the communicators that they call."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj
from tests import traced
from tests.conftest import slowly
from tests.frameworks.jax.test_failures import error_of


def use(comm):
    x = jnp.arange(4.0)
    whole = rj.all_reduce(x, comm=comm)
    compiled = jax.jit(lambda x: rj.all_gather(rj.all_reduce(x, "max", comm=comm), comm=comm))
    gradient = jax.grad(lambda x: rj.reduce_scatter(x, comm=comm).sum())
    jax.block_until_ready((whole, compiled(x), gradient(x)))


def communicators_that_come_and_go(comm, cycles):
    return traced.come_and_go(comm, use, cycles)


@pytest.mark.parametrize("cycles", [10, *slowly(100)])
def test_no_program_keeps_a_communicator(cycles):
    traced.no_program_keeps_a_communicator(ringreduce.run(communicators_that_come_and_go, 2, cycles))


def ends(comm):
    def compiled(group):
        holder = [group]
        program = jax.jit(lambda x: rj.all_reduce(x, comm=holder[0]))
        program(jnp.ones(4))
        holder.clear()
        return lambda: program(jnp.ones(4))

    return traced.calls_after_the_end(comm, compiled, error_of)


def test_calls_after_the_end():
    traced.errors_say_what_became_of_it(ringreduce.run(ends, 2))


def dropped_in_the_background(comm):
    """Rank 1 drops the group before its program has called it."""
    group, control = comm.split(0), comm.split(0)

    @jax.jit
    def program(x):
        x = rj.recv(x, 0, comm=comm) if comm.rank == 1 else x
        much = jnp.sort(jnp.sin(jnp.arange(1 << 18) + x[0])).sum()  # JAX runs it in the background
        return rj.all_reduce(x + 0 * much, comm=holder[0])

    holder = [group]
    x = jnp.ones(4)
    if comm.rank == 0:
        control.recv(bytearray(1), 1)
        rj.send(x, 1, comm=comm)
    result = program(x)
    holder.clear()
    del group
    if comm.rank == 1:
        control.send(bytearray(1), 0)
    return result.tolist()


def test_programs_in_the_background_end_first():
    assert ringreduce.run(dropped_in_the_background, 2, timeout=100) == [[2.0] * 4] * 2
