"""Calls run in the order of the program on all ranks, whether or not values depend on each other."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as rt

COUNT = 40


def with_threads(function):
    """Lets operations run side by side, also on a core: in one thread, they would keep the order by themselves."""

    @functools.wraps(function)
    def on_rank(comm):
        tf.config.threading.set_inter_op_parallelism_threads(4)
        return function(comm)

    return on_rank


def work(number, matrix):
    """Something that takes the longer the smaller the number, so that later calls could start first."""
    slow = matrix
    for _ in range(max(0, 6 - number)):
        slow = slow @ matrix
    return slow[0, 1]  # zero, which TensorFlow cannot know


@with_threads
def independent_messages(comm):
    """Rank 0 sends numbers; what precedes the first is expensive, and the last are ready at once."""

    @tf.function
    def send_all(x, matrix):
        for number in range(COUNT):
            rt.send(x + number + work(number, matrix), 1, comm=comm)
        return x

    @tf.function
    def receive_all(x, matrix):
        received = [rt.recv(x, 0, comm=comm) for _ in range(COUNT)]
        return tf.stack(received[::-1])

    found = (send_all if comm.rank == 0 else receive_all)(tf.zeros(()), tf.eye(200))
    return found.numpy().tolist()


def test_calls_without_data_dependence_keep_their_order():
    assert ringreduce.run(independent_messages, 2)[1] == list(range(COUNT))[::-1]


@with_threads
def independent_collectives(comm):
    """Every rank has something else that is slow; mixed up, calls would combine values of different calls."""

    @tf.function
    def program(x, matrix):
        found = []
        for number in range(COUNT):
            slow = work(number if comm.rank else COUNT - number, matrix)
            found.append(rt.all_reduce(x + number + slow, comm=comm))
        unused = rt.all_reduce(x, comm=comm)  # no result depends on it, and yet no rank leaves it out
        del unused
        return tf.stack(found), rt.all_reduce(x + 100, "max", comm=comm)

    found, last = program(tf.constant(float(comm.rank)), tf.eye(200))
    return found.numpy().tolist(), float(last)


def test_collectives_keep_their_order():
    assert ringreduce.run(independent_collectives, 2) == [([2.0 * n + 1 for n in range(COUNT)], 101.0)] * 2


@with_threads
def loops_and_branches(comm):
    """Iterations of a while loop may run side by side, as far as data and control dependencies allow."""

    @tf.function
    def sender(matrix):
        for number in tf.range(COUNT):
            slow = matrix
            for _ in tf.range(tf.maximum(0, 6 - number)):
                slow = slow @ matrix
            value = tf.cast(number, "float32") + slow[0, 1]
            if number % 2 == 0:
                rt.send(value, 1, comm=comm)
            else:
                rt.send(-value, 1, comm=comm)
        return tf.zeros(1)

    @tf.function
    def receiver(matrix):
        found = tf.TensorArray("float32", COUNT)
        for number in tf.range(COUNT):
            found = found.write(number, rt.recv(tf.TensorSpec([]), 0, comm=comm))
        return found.stack()

    return (sender if comm.rank == 0 else receiver)(tf.eye(200)).numpy().tolist()


def test_iterations_keep_their_order():
    received = ringreduce.run(loops_and_branches, 2)[1]
    assert received == [float(n) if n % 2 == 0 else -float(n) for n in range(COUNT)]


@with_threads
def several_functions(comm):
    """Functions of which one calls the other, gradients, and a second communicator."""
    pairs = comm.split(comm.rank // 2)

    @tf.function
    def inner(x):
        return rt.all_reduce(x, comm=pairs)

    @tf.function
    def outer(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b = inner(x), rt.all_reduce(2 * x, "avg", comm=comm)
            c = inner(3 * x) * b
        return a, b, c, tape.gradient(c, x), rt.all_gather(x[None], comm=pairs)

    return [found.numpy().tolist() for found in outer(tf.constant(float(comm.rank)))]


def test_functions_and_communicators():
    low, high = ringreduce.run(several_functions, 4)[::3]
    # c = 3 (x + x') b: each rank's c depends on the x of its pair directly, and on everybody's through b.
    assert low[:3] == [1.0, 3.0, 9.0]
    assert high[:3] == [5.0, 3.0, 45.0]
    assert low[4] == [0.0, 1.0]
    assert high[4] == [2.0, 3.0]
    through_b = sum(3 * total / 2 for total in (1, 1, 5, 5))
    assert low[3] == high[3] == 3 * 3 * 2 + through_b


@with_threads
def gradients_of_functions(comm):
    """Each rank has the gradients of other results first. Mixed up, calls would add gradients of different ones."""

    @tf.function
    def weighted(x, matrix, number):
        rows = tf.fill([1, 200], rt.all_reduce(x, comm=comm))
        for _ in range(number % 7 * 3 if comm.rank else (COUNT - number) % 7 * 3):
            rows = rows @ matrix
        return rows[0, 0] * (number + 1 + 100 * comm.rank)

    def program(x, matrix):
        return tf.add_n([weighted(x[number], matrix, number) for number in range(COUNT)])

    def gradient(program, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = program(x, tf.eye(200))
        return tape.gradient(result, x)

    outside = gradient(tf.function(program), tf.zeros(COUNT))
    inside = tf.function(lambda x: gradient(program, x))(tf.zeros(COUNT))
    return outside.numpy().tolist(), inside.numpy().tolist()


def test_calls_in_gradients_of_functions_keep_their_order():
    wanted = [2.0 * (number + 1) + 100 for number in range(COUNT)]
    assert ringreduce.run(gradients_of_functions, 2) == [(wanted, wanted)] * 2
