"""Results against NumPy's, with inputs that every order of combining adds exactly."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

# Only imported here: ranks are forked, which a process that has used TensorFlow must not do.
pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as rt
from tests.traced import AVERAGES, averages, differences, values, wrong_results


def results(comm, compiled):
    return wrong_results(comm, rt, tf.function if compiled else lambda function: function)


@pytest.mark.parametrize("compiled", [False, True])
def test_results_are_numpys(compiled):
    assert ringreduce.run(results, 2, compiled) == [[], []]


@pytest.mark.slow
def test_results_are_numpys_on_three_ranks():
    assert ringreduce.run(results, 3, True) == [[], [], []]


def averaged(comm):
    return averages(comm, rt)


def test_averages():
    assert ringreduce.run(averaged, 2) == AVERAGES


def shapes(comm):
    """Also those that tf.function does not know when it makes the graph."""
    wrong = []

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def of_any_shape(x):
        return rt.all_reduce(x, comm=comm), rt.broadcast(x, 1, comm=comm)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def of_any_length(x):
        gathered = rt.all_gather(x, comm=comm)
        return gathered, gathered.shape.as_list() == [None, 3]

    for shape in [(), (0,), (1,), (3, 0, 2), (5, 7), (1 << 20,)]:
        inputs = [values(rank, shape) for rank in range(comm.size)]
        total, copy = of_any_shape(inputs[comm.rank])
        wrong += differences(total, np.asarray(sum(inputs)), f"all_reduce {shape}")
        wrong += differences(copy, inputs[1], f"broadcast {shape}")
        if shape:
            found = rt.all_gather(inputs[comm.rank], comm=comm)
            wrong += differences(found, np.concatenate(inputs), f"all_gather {shape}")
    inputs = [values(rank, (2, 3)) for rank in range(comm.size)]
    found, known = of_any_length(inputs[comm.rank])
    return wrong + differences(found, np.concatenate(inputs), "all_gather"), bool(known)


def test_shapes():
    assert ringreduce.run(shapes, 2) == [([], True)] * 2


def inputs_stay(comm):
    """Results may take over the memory of an input, but only if nobody else needs this."""
    x = tf.Variable(tf.ones(1 << 17))

    @tf.function
    def twice(x):
        total = rt.all_reduce(x, comm=comm)
        return total, rt.all_reduce(x * 3, comm=comm), x + 0

    read = x.read_value()
    total, more, same = twice(read)
    kept = [rt.all_reduce(read, comm=comm) for _ in range(3)]  # several that live at the same time
    return [float(tf.reduce_max(one)) for one in (total, more, same, read, x, *kept)]


def test_inputs_keep_their_values():
    assert ringreduce.run(inputs_stay, 2) == [[2.0, 6.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]] * 2


def messages(comm):
    x = tf.range(4.0) + 10 * comm.rank
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    @tf.function
    def around(x):
        moved = rt.sendrecv(x, dest=right, source=left, comm=comm)
        other = rt.sendrecv(x[:2], tf.TensorSpec((2,), x.dtype), dest=left, source=right, tag=7, comm=comm)
        if comm.rank == 0:
            rt.send(tf.cast(x, "int8"), 1, tag=3, comm=comm)
            return moved, other
        return moved, other, rt.recv(tf.zeros(4, "int8"), 0, tag=3, comm=comm) if comm.rank == 1 else x

    return [found.numpy().tolist() for found in around(x)]


def test_messages():
    a, b, c = [[0.0, 1, 2, 3], [10.0, 11, 12, 13], [20.0, 21, 22, 23]]
    assert ringreduce.run(messages, 3) == [[c, b[:2]], [a, c[:2], [0, 1, 2, 3]], [b, a[:2], c]]


def gradients(comm):
    """Of a weighted sum of every rank's result, so that each element of each rank has a derivative of its own."""
    size, rank = comm.size, comm.rank
    x = tf.reshape(tf.range(2.0 * size) + 10 * rank, [size, 2])
    calls = {
        "sum": lambda x: rt.all_reduce(x, comm=comm),
        "avg": lambda x: rt.all_reduce(x, "avg", comm=comm),
        "gather": lambda x: rt.all_gather(x, comm=comm),
        "scatter": lambda x: rt.reduce_scatter(x, comm=comm),
        "scatter avg": lambda x: rt.reduce_scatter(x, "avg", comm=comm),
        "all_to_all": lambda x: rt.all_to_all(x, comm=comm),
        "broadcast": lambda x: rt.broadcast(x, 1, comm=comm),
        "sendrecv": lambda x: rt.sendrecv(x, dest=(rank + 1) % size, source=(rank - 1) % size, comm=comm),
    }

    def one(call, x, around=lambda call: call):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = around(call)(x)
            weights = tf.reshape(tf.range(tf.size(y, out_type=tf.int32)), tf.shape(y))
            loss = tf.reduce_sum(y * tf.cast(weights + 1 + 100 * rank, y.dtype))
        return tape.gradient(loss, x)

    eager = {name: one(call, x).numpy().tolist() for name, call in calls.items()}
    graph = {name: tf.function(partial(one, call))(x).numpy().tolist() for name, call in calls.items()}
    # The gradient of a function is a function, from which TensorFlow removes what the result does not need.
    outside = {name: one(call, x, tf.function).numpy().tolist() for name, call in calls.items()}
    return eager, graph, outside


def test_gradients_are_those_of_the_sum_of_all_ranks_results():
    w = [np.arange(1.0, 5).reshape(2, 2) + 100 * rank for rank in range(2)]
    wide = [np.arange(1.0, 9).reshape(4, 2) + 100 * rank for rank in range(2)]
    short = [np.arange(1.0, 3).reshape(1, 2) + 100 * rank for rank in range(2)]
    wanted = [
        {
            "sum": w[0] + w[1],
            "avg": (w[0] + w[1]) / 2,
            "gather": (wide[0] + wide[1])[2 * rank : 2 * rank + 2],
            "scatter": np.concatenate(short),
            "scatter avg": np.concatenate(short) / 2,
            "all_to_all": np.stack([w[0][rank], w[1][rank]]),
            "broadcast": (w[0] + w[1]) * (rank == 1),
            "sendrecv": w[1 - rank],
        }
        for rank in range(2)
    ]
    for rank, found in enumerate(ringreduce.run(gradients, 2)):
        assert found == ({name: value.tolist() for name, value in wanted[rank].items()},) * 3


def without_gradients(comm):
    found = []
    for call in (
        lambda x: rt.all_reduce(x, "max", comm=comm),
        lambda x: rt.recv(x, 1 - comm.rank, comm=comm) if comm.rank else rt.send(x, 1, comm=comm) or x,
    ):
        x = tf.ones(2)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        try:
            found.append(tape.gradient(y, x) is None)
        except NotImplementedError as error:
            found.append(str(error))
    return found


def test_what_has_no_gradient_says_so():
    for maximum, _ in ringreduce.run(without_gradients, 2):
        assert maximum == "all_reduce with op 'max' has no gradient; tf.stop_gradient(x) takes x as constant"
