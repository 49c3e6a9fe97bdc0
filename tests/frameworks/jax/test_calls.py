"""Results against NumPy's, with inputs that every order of combining adds exactly."""

from __future__ import annotations

import numpy as np
import pytest

# Only imported here: ranks are forked, which a process that has used JAX must not do.
pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj
from tests.traced import AVERAGES, averages, differences, values, wrong_results


def results(comm, compiled):
    jax.config.update("jax_enable_x64", True)
    return wrong_results(comm, rj, jax.jit if compiled else lambda function: function)


@pytest.mark.parametrize("compiled", [False, True])
def test_results_are_numpys(compiled):
    assert ringreduce.run(results, 2, compiled) == [[], []]


@pytest.mark.slow
def test_results_are_numpys_on_three_ranks():
    assert ringreduce.run(results, 3, True) == [[], [], []]


def averaged(comm):
    return averages(comm, rj)


def test_averages():
    assert ringreduce.run(averaged, 2) == AVERAGES


def shapes(comm):
    wrong = []
    for shape in [(), (0,), (1,), (3, 0, 2), (5, 7), (1 << 20,)]:
        inputs = [values(rank, shape) for rank in range(comm.size)]
        found = rj.all_reduce(inputs[comm.rank], comm=comm)
        wrong += differences(found, np.asarray(sum(inputs)), f"all_reduce {shape}")
        found = rj.broadcast(inputs[comm.rank], 1, comm=comm)
        wrong += differences(found, inputs[1], f"broadcast {shape}")
        if shape:
            found = rj.all_gather(inputs[comm.rank], comm=comm)
            wrong += differences(found, np.concatenate(inputs), f"all_gather {shape}")
    return wrong


def test_shapes():
    assert ringreduce.run(shapes, 2) == [[], []]


def messages(comm):
    x = jnp.arange(4.0) + 10 * comm.rank
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    @jax.jit
    def around(x):
        moved = rj.sendrecv(x, dest=right, source=left, comm=comm)
        other = rj.sendrecv(
            x[:2], jax.ShapeDtypeStruct((2,), x.dtype), dest=left, source=right, tag=7, comm=comm
        )
        if comm.rank == 0:
            rj.send(x.astype("int8"), 1, tag=3, comm=comm)
            return moved, other
        got = rj.recv(jnp.zeros(4, "int8"), 0, tag=3, comm=comm) if comm.rank == 1 else x
        return moved, other, got

    return [found.tolist() for found in around(x)]


def test_messages():
    a, b, c = [[0.0, 1, 2, 3], [10.0, 11, 12, 13], [20.0, 21, 22, 23]]
    assert ringreduce.run(messages, 3) == [[c, b[:2]], [a, c[:2], [0, 1, 2, 3]], [b, a[:2], c]]


def loops(comm):
    @jax.jit
    def program(x):
        def step(carry, row):
            carry = rj.all_reduce(carry + row, "max", comm=comm)
            return carry, rj.all_gather(carry[:1], comm=comm)

        scanned, gathered = jax.lax.scan(step, x, jnp.arange(12.0).reshape(4, 3) * (comm.rank + 1))
        summed = jax.lax.fori_loop(0, 5, lambda i, x: rj.all_reduce(x, comm=comm), x)
        doubled = jax.lax.while_loop(lambda x: x[0] < 100, lambda x: rj.all_reduce(x, comm=comm), x + 1)
        chosen = jax.lax.cond(x[2] > 1, lambda x: rj.all_reduce(x, comm=comm), lambda x: x, jnp.arange(3.0))
        return scanned, gathered, summed, doubled, chosen

    return [found.tolist() for found in program(jnp.arange(3.0))]


def test_loops_and_branches():
    carry, gathered = np.arange(3.0), []
    for row in np.arange(12.0).reshape(4, 3) * 2:
        carry = carry + row
        gathered.append([carry[0]] * 2)
    wanted = [carry.tolist(), gathered, [0.0, 32, 64], [128.0, 256, 384], [0.0, 2, 4]]
    assert ringreduce.run(loops, 2) == [wanted, wanted]


COUNT = 40


def messages_without_dependence(comm):
    """Rank 0 sends numbers; what precedes the first is expensive, and the last are ready at once."""

    @jax.jit
    def send_all(x, matrix):
        for number in range(COUNT):
            slow = matrix
            for _ in range(max(0, 6 - number)):
                slow = slow @ matrix
            rj.send(x + number + 0 * slow[0, 0], 1, comm=comm)
        return x

    @jax.jit
    def receive_all(x, matrix):
        received = [rj.recv(x, 0, comm=comm) for _ in range(COUNT)]
        return jnp.stack(received[::-1])

    x, matrix = jnp.zeros((), "float32"), jnp.eye(200, dtype="float32")
    found = (send_all if comm.rank == 0 else receive_all)(x, matrix)
    return found.tolist()


def test_calls_without_data_dependence_keep_their_order():
    assert ringreduce.run(messages_without_dependence, 2)[1] == list(range(COUNT))[::-1]


def programs_in_the_background(comm):
    """Programs that no result connects, dispatched without waiting; the ranks arrive at different times."""
    first = jax.jit(lambda x, y: (rj.all_reduce(x, comm=comm), (y @ y)[0, 0]))
    second = jax.jit(lambda x: rj.all_reduce(x * 2, "max", comm=comm))
    big = jnp.ones((600 if comm.rank else 2,) * 2)
    found = []
    for number in range(20):
        found += [first(jnp.float32(number), big)[0], second(jnp.float32(number))]
    return [float(each) for each in found]


def test_programs_keep_their_order():
    wanted = [2.0 * number for number in range(20) for _ in range(2)]
    assert ringreduce.run(programs_in_the_background, 2) == [wanted, wanted]


def two_communicators(comm):
    pairs = comm.split(comm.rank // 2)

    @jax.jit
    def program(x):
        return rj.all_reduce(x, comm=comm), rj.all_reduce(x, comm=pairs), rj.all_gather(x[None], comm=pairs)

    return [found.tolist() for found in program(jnp.float32(comm.rank))]


def test_two_communicators():
    found = ringreduce.run(two_communicators, 4)
    assert found == [[6.0, 1.0, [0.0, 1.0]]] * 2 + [[6.0, 5.0, [2.0, 3.0]]] * 2
