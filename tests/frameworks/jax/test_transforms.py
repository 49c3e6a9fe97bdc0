"""Derivatives against those that can be written down, and batches against loops."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj

WORLD = 2


def inputs(rank):
    return np.arange(4, dtype="float32") + 1 + 3 * rank


def weights(rank, count):
    return np.arange(count, dtype="float32") * (rank + 1) - 2


def derivative(comm, name):
    """The gradient of the sum over ranks of <weights, call(x ** 2)>, in reverse mode."""
    calls = {
        "sum": lambda x: rj.all_reduce(x, comm=comm),
        "avg": lambda x: rj.all_reduce(x, "avg", comm=comm),
        "all_gather": lambda x: rj.all_gather(x, comm=comm),
        "reduce_scatter": lambda x: rj.reduce_scatter(x, comm=comm),
        "reduce_scatter avg": lambda x: rj.reduce_scatter(x, "avg", comm=comm),
        "all_to_all": lambda x: rj.all_to_all(x, comm=comm),
        "broadcast": lambda x: rj.broadcast(x, 1, comm=comm),
        "sendrecv": lambda x: rj.sendrecv(x, dest=1 - comm.rank, source=1 - comm.rank, comm=comm),
    }
    call = calls[name]

    def loss(x):
        y = call(x**2)
        return (weights(comm.rank, y.size) * y).sum()

    return jax.jit(jax.grad(loss))(inputs(comm.rank)).tolist()


def wanted(name, rank):
    x, (w0, w1) = inputs(rank), (weights(r, 4) for r in range(WORLD))
    wide = weights(0, 8) + weights(1, 8)
    narrow = np.concatenate([weights(0, 2), weights(1, 2)])
    cotangent = {
        "sum": w0 + w1,
        "avg": (w0 + w1) / 2,
        "all_gather": wide[4 * rank : 4 * rank + 4],
        "reduce_scatter": narrow,
        "reduce_scatter avg": narrow / 2,
        "all_to_all": np.concatenate([w[2 * rank : 2 * rank + 2] for w in (w0, w1)]),
        "broadcast": (w0 + w1) * (rank == 1),
        "sendrecv": (w1, w0)[rank],
    }[name]
    return (2 * x * cotangent).tolist()


def of_averages(comm, dtype):
    """The gradient of a reduce-scatter's averages: the cotangents of all ranks, divided by the number of ranks."""
    x = (jnp.arange(120) + 1).astype(dtype)
    _, backward = jax.vjp(lambda x: rj.reduce_scatter(x, "avg", comm=comm), x)
    return backward(x[40 * comm.rank : 40 * comm.rank + 40])[0].astype("float32").tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_narrow_gradients_are_divided_in_float32(dtype):
    x = (np.arange(120) + 1).astype(jnp.dtype(dtype))
    wanted = (x.astype("float32") / 3).astype(x.dtype).astype("float32").tolist()
    assert ringreduce.run(of_averages, 3, dtype) == [wanted] * 3


NAMES = [
    "sum", "avg", "all_gather", "reduce_scatter", "reduce_scatter avg", "all_to_all", "broadcast", "sendrecv",
]  # fmt: skip


def derivatives(comm):
    return {name: derivative(comm, name) for name in NAMES}


def test_gradients():
    found = ringreduce.run(derivatives, WORLD)
    assert found == [{name: wanted(name, rank) for name in NAMES} for rank in range(WORLD)]


def second_derivative(comm):
    def total(x):
        return (rj.all_reduce(x, comm=comm) ** 2).sum()  # on n ranks its gradient is 2 n * all_reduce(x)

    hessian = jax.jacfwd(jax.grad(total))(inputs(comm.rank))
    value, tangent = jax.jvp(lambda x: rj.all_gather(x**2, comm=comm), (inputs(comm.rank),), (inputs(0),))
    return hessian.tolist(), value.tolist(), tangent.tolist()


def test_forward_mode_and_second_derivatives():
    value = np.concatenate([inputs(rank) ** 2 for rank in range(WORLD)])
    tangent = np.concatenate([2 * inputs(rank) * inputs(0) for rank in range(WORLD)])
    # All ranks pass the same unit vectors, so each entry is the sum of both ranks' second derivatives.
    wanted = (np.eye(4) * 2 * WORLD * WORLD).tolist(), value.tolist(), tangent.tolist()
    assert ringreduce.run(second_derivative, WORLD) == [wanted] * WORLD


def gradient_through(comm, wrap):
    def loss(x):
        def step(carry, _):
            return rj.all_reduce(carry * x, "avg", comm=comm), None

        return jax.lax.scan(wrap(step), jnp.ones(4), None, length=3)[0].sum()

    return jax.jit(jax.grad(loss))(jnp.asarray(inputs(0))).tolist()


@pytest.mark.parametrize("wrap", [lambda step: step, jax.checkpoint], ids=["scan", "checkpoint"])
def test_gradient_through_a_loop(wrap):
    """With equal x on all ranks, the loss of each is the sum of x ** 3, and the gradient its own."""
    assert ringreduce.run(gradient_through, WORLD, wrap) == [(3 * inputs(0) ** 2).tolist()] * WORLD


def without_derivative(comm):
    found = []
    x = jnp.arange(4.0)
    for call in (
        lambda x: rj.all_reduce(x, "max", comm=comm).sum(),
        lambda x: rj.reduce_scatter(x, "prod", comm=comm).sum(),
        lambda x: [rj.send(x, 0, comm=comm), x.sum()][1],
    ):
        try:
            jax.grad(call)(x)
        except NotImplementedError as error:
            found.append(str(error).split(" has")[0])
    constant = jax.grad(lambda x: (x * rj.all_reduce(jax.lax.stop_gradient(x), "max", comm=comm)).sum())(x)
    return found, constant.tolist()


def test_what_has_no_derivative_says_so():
    found = ["all_reduce with op 'max'", "reduce_scatter with op 'prod'", "send"], [0.0, 1.0, 2.0, 3.0]
    assert ringreduce.run(without_derivative, 1) == [found]


def batched(comm):
    wrong = []
    batch = jnp.arange(64.0).reshape(4, 4, 4) * (comm.rank + 1)
    other = 1 - comm.rank
    calls = {
        "all_reduce": lambda x: rj.all_reduce(x, comm=comm),
        "broadcast": lambda x: rj.broadcast(x, 1, comm=comm),
        "all_gather": lambda x: rj.all_gather(x, comm=comm),
        "reduce_scatter": lambda x: rj.reduce_scatter(x, comm=comm),
        "all_to_all": lambda x: rj.all_to_all(x, comm=comm),
        "sendrecv": lambda x: rj.sendrecv(x, dest=other, source=other, comm=comm),
    }
    for name, call in calls.items():
        for axis in range(3):
            rows = [call(row) for row in jnp.moveaxis(batch, axis, 0)]
            for out in range(3):
                found = jax.jit(jax.vmap(call, in_axes=axis, out_axes=out))(batch)
                if not np.array_equal(found, np.stack(rows, out)):
                    wrong.append((name, axis, out))
        found = jax.vmap(jax.vmap(call, in_axes=1), in_axes=0)(batch)
        if not np.array_equal(found, np.stack([jax.vmap(call, in_axes=1)(row) for row in batch])):
            wrong.append((name, "twice"))
    return wrong


def test_batches():
    assert ringreduce.run(batched, WORLD) == [[]] * WORLD


def batch_that_cannot_be(comm):
    found = []
    for call in (
        lambda x: rj.send(x, 0, comm=comm),
        lambda x: rj.all_gather(x, comm=comm),
        lambda x: rj.reduce_scatter(jnp.stack([x] * (2 * comm.size + 1)), comm=comm),
    ):
        try:
            jax.vmap(call)(jnp.arange(4.0))
        except (ValueError, NotImplementedError) as error:
            found.append(type(error).__name__)
    return found


def test_batches_that_cannot_be():
    assert (
        ringreduce.run(batch_that_cannot_be, 2) == [["NotImplementedError", "ValueError", "ValueError"]] * 2
    )
