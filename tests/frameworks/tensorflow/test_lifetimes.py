"""Graphs do not keep the communicators that they call."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce
import ringreduce.tensorflow as rt
from tests import traced
from tests.conftest import slowly
from tests.frameworks.tensorflow.test_failures import error_of


def use(comm):
    x = tf.Variable([0.0, 1.0, 2.0, 3.0])
    rt.all_reduce(x, comm=comm)

    @tf.function
    def compiled():
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(rt.all_gather(rt.reduce_scatter(x, comm=comm), comm=comm))
        return tape.gradient(y, x)

    compiled()


def communicators_that_come_and_go(comm, cycles):
    return traced.come_and_go(comm, use, cycles)


@pytest.mark.parametrize("cycles", [10, *slowly(100)])
def test_no_graph_keeps_a_communicator(cycles):
    traced.no_program_keeps_a_communicator(ringreduce.run(communicators_that_come_and_go, 2, cycles))


def ends(comm):
    def compiled(group):
        holder = [group]
        program = tf.function(lambda x: rt.all_reduce(x, comm=holder[0])).get_concrete_function(tf.ones(4))
        holder.clear()
        return lambda: program(tf.ones(4))

    return traced.calls_after_the_end(comm, compiled, error_of)


def test_calls_after_the_end():
    traced.errors_say_what_became_of_it(ringreduce.run(ends, 2))
