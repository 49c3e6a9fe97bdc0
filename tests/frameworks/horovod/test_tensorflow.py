"""Horovod's operations on TensorFlow tensors: results, gradients, order and errors, eager and in graphs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringreduce.horovod.tensorflow as hvd
from tests.frameworks.horovod.ranks import on_ranks, outcomes
from tests.traced import differences

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "complex64"]
REDUCE = {"Sum": sum, "Min": lambda xs: np.minimum.reduce(xs), "Max": lambda xs: np.maximum.reduce(xs)}


def values(shape, rank, dtype="float32"):
    counted = np.arange(np.prod(shape, dtype=int)) * 7 + rank * 3
    return (counted % 8).reshape(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)


def operations(compiled):
    maybe = tf.function if compiled else lambda function: function
    size, rank = hvd.size(), hvd.rank()
    wrong = []
    for dtype in DTYPES:
        inputs = [values((2 * size, 3), other, dtype) for other in range(size)]
        own = tf.constant(inputs[rank])
        for op, reduce in REDUCE.items():
            if dtype != "complex64" or op == "Sum":
                wanted = reduce(inputs).astype(inputs[0].dtype)
                found = maybe(lambda x, op=op: hvd.allreduce(x, op=getattr(hvd, op)))(own)
                wrong += differences(found, wanted, f"allreduce {dtype} {op}")
        mine = slice(2 * rank, 2 * rank + 2)
        total = sum(inputs).astype(inputs[0].dtype)
        calls = {
            "allgather": (hvd.allgather, np.concatenate(inputs)),
            "broadcast": (lambda x: hvd.broadcast(x, size - 1), inputs[-1]),
            "alltoall": (hvd.alltoall, np.concatenate([one[mine] for one in inputs])),
            "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), total[mine]),
        }
        for name, (call, wanted) in calls.items():
            wrong += differences(maybe(call)(own), wanted, f"{name} {dtype}")
    return wrong


@pytest.mark.parametrize(("ranks", "compiled"), [(2, False), (3, True)])
def test_results(ranks, compiled):
    assert on_ranks(ranks, operations, compiled) == [[]] * ranks


def special_cases(compiled):
    maybe = tf.function if compiled else lambda function: function
    rank = hvd.rank()
    x = tf.constant([4.0, 8.0]) * (rank + 1)
    found = {}

    def all_of(x):
        scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        whole = hvd.allreduce(tf.cast(x, "int32"))  # averages of integers are rounded down
        halves = hvd.allreduce(x, compression=hvd.Compression.fp16)
        many = [tf.fill([n % 5 + 1], float(n + rank)) for n in range(30)] + [tf.zeros([0, 3]), x[0]]
        group = hvd.grouped_allreduce([*many, tf.ones([50_000])], op=hvd.Sum)
        uneven = hvd.allgather(tf.fill([rank + 1, 2], float(rank)))
        gathered = hvd.grouped_allgather([x, x[0]])
        rows, splits = hvd.alltoall(tf.range(3.0) + 10 * rank, splits=[1, 2])
        scattered = hvd.reducescatter(tf.range(3.0))
        slices = tf.IndexedSlices(tf.fill([1, 2], float(rank + 1)), tf.constant([rank]), tf.constant([4, 2]))
        sparse = hvd.allreduce(slices)
        return (
            scaled,
            whole,
            halves,
            group,
            uneven,
            gathered,
            rows,
            splits,
            scattered,
            sparse.values,
            sparse.indices,
        )

    names = [
        "scaled",
        "whole",
        "halves",
        "group",
        "uneven",
        "gathered",
        "rows",
        "splits",
        "scattered",
        "values",
        "indices",
    ]
    for name, result in zip(names, maybe(all_of)(x), strict=True):
        found[name] = tf.nest.map_structure(lambda one: one.numpy().tolist(), result)
    found["group"] = found["group"][0], found["group"][29], found["group"][30:32], sum(found["group"][32])
    found["old"] = hvd.allreduce(x, average=False).numpy().tolist()
    found["objects"] = hvd.broadcast_object_fn(1)({"from": rank}), hvd.allgather_object(rank)
    variables = [tf.Variable([float(rank)]), tf.Variable(rank)]
    hvd.broadcast_variables(variables, 1)
    found["variables"] = [one.numpy().tolist() for one in variables]
    found["job"] = [
        int(op()) for op in (hvd.size_op, hvd.rank_op, hvd.local_size_op, hvd.process_set_included_op)
    ]
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_special_cases(compiled):
    for rank, found in enumerate(on_ranks(2, special_cases, compiled)):
        assert found["scaled"] == [24.0, 48.0]
        assert found["whole"] == [6, 12]
        assert found["halves"] == [6.0, 12.0]
        assert found["group"] == ([1.0], [59.0] * 5, [[], 12.0], 100_000.0)
        assert found["uneven"] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert found["gathered"] == [[4.0, 8.0, 8.0, 16.0], [4.0, 8.0]]
        assert found["rows"] == ([0.0, 10.0] if rank == 0 else [1.0, 2.0, 11.0, 12.0])
        assert found["splits"] == [rank + 1] * 2
        assert found["scattered"] == ([0.0, 1.0] if rank == 0 else [2.0])
        assert found["values"] == [[0.5, 0.5], [1.0, 1.0]]
        assert found["indices"] == [0, 1]
        assert found["old"] == [12.0, 24.0]
        assert found["objects"] == ({"from": 1}, [0, 1])
        assert found["variables"] == [[1.0], 1]
        assert found["job"] == [2, rank, 2, 1]


def gradients(compiled):
    maybe = tf.function if compiled else lambda function: function
    rank = hvd.rank()
    found = {}
    calls = {
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "average": hvd.allreduce,
        "gather": hvd.allgather,
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "alltoall": lambda x: hvd.alltoall(x, splits=[1, 1])[0],
        "scatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
    }
    for name, call in calls.items():

        def one(x, call=call):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
                loss = tf.reduce_sum(y * tf.cast(tf.range(tf.size(y)) + 1 + 10 * rank, y.dtype))
            return tape.gradient(loss, x)

        found[name] = maybe(one)(tf.ones([3 if name == "alltoall" else 2])).numpy().tolist()
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    wanted = [
        {
            "sum": [12.0 + 0, 14.0],
            "average": [6.0, 7.0],
            "gather": [6.0, 7.0] if rank == 0 else [8.0, 9.0],  # averaged
            "broadcast": [0.0, 0.0] if rank == 0 else [6.0, 7.0],
            "alltoall": [1.0, 11.0, 0.0] if rank == 0 else [2.0, 12.0, 0.0],
            "scatter": [2.0, 22.0],  # times the number of ranks
        }
        for rank in range(2)
    ]
    assert on_ranks(2, gradients, compiled) == wanted


def functions_of_functions():
    """The gradient of a function is a function of its own, from which TensorFlow removes what nobody needs."""
    function = tf.function(lambda x: hvd.broadcast(x * 2.0, 1))
    x = tf.Variable([1.0, 2.0])
    found = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            y = function(x)
            loss = tf.reduce_sum(y * float(hvd.rank() + 1))
        found.append(tape.gradient(loss, x).numpy().tolist())
    return found, float(hvd.allreduce(tf.constant(1.0)))


def test_the_gradient_of_a_broadcast_runs_on_all_ranks():
    """Those that are not the root get zeros, which do not depend on what the ranks compute together."""
    wanted = [([[0.0, 0.0]] * 2, 1.0), ([[3.0, 3.0]] * 2, 1.0)]
    assert on_ranks(2, functions_of_functions) == wanted


FACTORS = [0.7361234, 1e-8, 1 / 3, 3e4]


def in_half(dtype, compiled):
    """Values of 16-bit floats with a factor, which differ if the factor is rounded to 16 bits first."""
    x = tf.constant(np.random.default_rng(0).uniform(-100, 100, 64), dtype)
    return [
        text for factor in FACTORS for text in with_factor(x / 1024 if factor > 1 else x, factor, compiled)
    ]


def with_factor(x, factor, compiled):
    maybe = tf.function if compiled else lambda function: function
    own = slice(32 * hvd.rank(), 32 * hvd.rank() + 32)
    wide = tf.cast(x, tf.float32) * factor
    once, total, half = (tf.cast(y, x.dtype) for y in (wide, 2 * wide, tf.cast(x, tf.float32) / 2))
    calls = {
        "before": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=factor), once + once),
        "after": (lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=factor), total),
        "max": (lambda x: hvd.allreduce(x, op=hvd.Max, prescale_factor=factor), once),
        "group": (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum, postscale_factor=factor)[0], total),
        "scatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=factor), total[own]),
    }

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.reducescatter(x, op=hvd.Average, prescale_factor=factor)
        return tape.gradient(y, x, x[own])

    def local(x):
        slices = tf.IndexedSlices(x[:, None], tf.range(64), (64, 1))
        tape = hvd.DistributedGradientTape(tf.GradientTape())
        tape.register_local_source(slices.values)
        return tape._reducer.reduce([slices], [slices.values])[0].values[:, 0]

    calls |= {"gradient": (gradient, once), "local": (local, half)}
    wrong = []
    for name, (call, wanted) in calls.items():
        wrong += differences(maybe(call)(x), wanted.numpy(), f"{name} {factor}")
    return wrong


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_are_applied_in_float32_and_rounded_once(dtype, compiled):
    assert on_ranks(2, in_half, dtype, compiled) == [[]] * 2


def of_integers():
    x = np.array([-5, -3, -1, 0, 1, 3, 5, 7])
    found = []
    for dtype in ("int32", "int64"):
        own = tf.constant(x if hvd.rank() == 0 else np.zeros_like(x), dtype)
        found.append(hvd.allreduce(own).numpy().tolist())
    for splits in ([1.9, 2.1], tf.constant([1.0, 3.0])):
        with pytest.raises(ValueError, match="splits must be integers, not float32"):
            hvd.alltoall(tf.zeros(4), splits)
    return found


def test_integers():
    """Averages are rounded towards zero, and numbers of rows are not rounded at all."""
    assert on_ranks(2, of_integers) == [[[-2, -1, 0, 0, 0, 1, 2, 3]] * 2] * 2


def taped_in_a_set(local):
    own = hvd.add_process_set([0, 1])
    dense, table = tf.Variable([1.0, 1.0]), tf.Variable(tf.zeros((4, 1)))
    with tf.GradientTape() as tape:
        rows = tf.gather(table, [hvd.rank(), 3])
        loss = tf.reduce_sum(dense * float(hvd.rank())) + tf.reduce_sum(rows)
    tape = hvd.DistributedGradientTape(tape, process_set=own)
    if local:
        tape.register_local_source(table)
    of_dense, of_table = tape.gradient(loss, [dense, table])
    return of_dense.numpy().tolist(), tf.convert_to_tensor(of_table)[:, 0].numpy().tolist()


@pytest.mark.parametrize("local", [False, True])
def test_ranks_outside_a_process_set_keep_their_gradients(local):
    """Local gradients are divided by the number of ranks of the set, also those of tf.IndexedSlices."""
    found = on_ranks(3, taped_in_a_set, local, sets="dynamic")
    inside = [[0.5, 0.0, 0.0, 0.5], [0.0, 0.5, 0.0, 0.5]] if local else [[0.5, 0.5, 0.0, 1.0]] * 2
    assert found == [([0.5, 0.5], inside[0]), ([0.5, 0.5], inside[1]), ([2.0, 2.0], [0.0, 0.0, 1.0, 1.0])]


def orders():
    """Ranks make independent calls in opposite orders."""
    names = ["a", "b", "c", "d", "e", "f"]

    @tf.function
    def graph(x):
        mine = names[::-1] if hvd.rank() else names
        found = {name: hvd.allreduce(x + ord(name), name=name) for name in mine}
        return [found[name] for name in names]

    return [[float(one) for one in graph(tf.constant(0.0))] for _ in range(3)]


def test_independent_calls_of_a_graph_match_in_any_order():
    wanted = [float(ord(name)) for name in "abcdef"]
    assert on_ranks(2, orders) == [[wanted] * 3] * 2


def mismatches():
    found = []
    rank = hvd.rank()
    calls = [
        lambda x: hvd.allreduce(x[: 1 + rank], name="shape"),
        lambda x: hvd.allreduce(x, op=(hvd.Sum, hvd.Max)[rank], name="op"),
        lambda x: hvd.broadcast(x, rank, name="root"),
        lambda x: hvd.allreduce(tf.cast(x, ("float32", "int32")[rank]), name="dtype"),
    ]
    for call in calls:
        try:
            call(tf.ones(3))
        except hvd.HorovodInternalError as error:
            found.append(str(error))
        try:
            tf.function(call)(tf.ones(3))
        except tf.errors.AbortedError as error:
            found.append(str(error))
    mistakes = [
        lambda: hvd.alltoall(tf.ones(3)),
        lambda: hvd.reducescatter(tf.constant(1.0)),
        lambda: hvd.allreduce("text"),
        lambda: hvd.broadcast(tf.ones(1), 5),
        lambda: hvd.allreduce(tf.constant([True])),
        lambda: hvd.grouped_allreduce([]),
        lambda: tf.function(lambda: hvd.allreduce(tf.ones(1)), jit_compile=True)(),
    ]
    for mistake in mistakes:
        try:
            mistake()
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found, float(hvd.allreduce(tf.constant(float(rank))))


def test_mismatches_and_mistakes_leave_the_job_usable():
    for found, after in on_ranks(2, mismatches):
        assert len(found) == 15, found
        for text in found[:8]:
            assert "the ranks disagree about operation" in text
            assert "rank 0: " in text
            assert "rank 1: " in text
        rows, axis, text, root, average, group, compiled = found[8:]
        assert "the 3 rows of the tensor do not divide evenly among 2 ranks" in rows
        assert "at least one axis" in axis
        assert text.startswith("TypeError: x has dtype string")
        assert "root_rank must be one of the ranks [0, 1]" in root
        assert "bool have no average" in average
        assert "list of at least one tensor" in group
        assert "XLA cannot compile allreduce" in compiled
        assert after == 0.5


def victim(compiled):
    maybe = tf.function if compiled else lambda function: function
    call = maybe(lambda x: hvd.allreduce(x, name="x"))
    call(tf.ones(2))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        call(tf.ones(2))
    except (hvd.HorovodInternalError, tf.errors.AbortedError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("compiled", [False, True])
def test_killed_rank(compiled):
    first, second, third = outcomes(3, victim, compiled)
    assert second is None
    for text in (first, third):
        assert "rank 1 died" in text


def sets_and_joining():
    odd = hvd.add_process_set([1, 2])
    found = []
    if odd.included():
        found.append(float(hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Sum, process_set=odd)))
        graph = tf.function(lambda x: hvd.allgather(x, process_set=odd))
        found.append(graph(tf.constant([hvd.rank()])).numpy().tolist())
    for _ in range(hvd.rank() + 1):  # ranks have different numbers of batches
        found.append(float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="step")))
    found.append(hvd.join())
    return found


def test_process_sets_and_joining():
    first, second, third = on_ranks(3, sets_and_joining, sets="dynamic")
    assert first == [3.0, 2]
    assert second == [3.0, [1, 2], 3.0, 2.0, 2]
    assert third == [3.0, [1, 2], 3.0, 2.0, 1.0, 2]
