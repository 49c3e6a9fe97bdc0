"""The operations of csrc/fronts/tensorflow, and their gradients.

TensorFlow runs operations of a graph side by side, in any order that the data allow. The operations are
stateful: tf.function then adds control dependencies that keep them in the order of the program, in the function itself
and in the bodies of its loops and branches. They are neither left out nor merged. Eager operations run one after the
other, and so do functions. To a function that computes another function's gradients, TensorFlow adds no control
dependencies: keep_order() does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util, gradients_util

from ringreduce._engine import reduce
from ringreduce.communicator import Communicator
from ringreduce.frameworks.tensorflow import library
from ringreduce.frameworks.traced.call import CALLS, MESSAGES, Call, shape_after

OPERATIONS = {f"Ringreduce{name.title().replace('_', '')}": name for name in CALLS}

_numbered: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()


def run(x: Any, call: Call) -> Any:
    """Makes the call, or adds it to the graph. Returns its result, or None if it has none."""
    graph = not tf.executing_eagerly()
    if graph:
        check_compiler(call.name)
    comm = call.comm
    number = comm._c.number
    _numbered[number] = comm
    attributes = {
        "comm": number,
        "ranks": comm.size,
        "op": reduce.ops().index(call.op),
        "root": call.root,
        "dest": call.dest,
        "source": call.source,
        "tag": call.tag,
    }
    shape: Any = None
    if call.result is not None:
        shape, dtype = call.result
        attributes |= {"R": dtype, "shape": shape}
    elif call.name not in MESSAGES and x.shape.rank is not None:
        shape = shape_after(call.name, x.shape.as_list(), comm.size)
    function = getattr(library.loaded()[0], f"ringreduce_{call.name}")
    result = function(**attributes) if x is None else function(x, **attributes)
    if call.name == "send":
        return None
    if graph and shape is not None:
        result.set_shape(shape)
    return result


def check_compiler(name: str) -> None:
    """Raises ValueError if XLA is to compile the graph that is being made."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"XLA cannot compile {name}: use tf.function without jit_compile=True, and for Keras "
            "model.compile(..., jit_compile=False)"
        )


# --- order ------------------------------------------------------------------------------------------------------

ORDERED = {*OPERATIONS, "StatefulPartitionedCall", "While", "If", "Case"}


def keep_order(graph: Any) -> None:
    """Has calls, and functions that may make some, run in the order in which they were added to a function's graph."""
    if getattr(graph, "experimental_acd_manager", None) is not None or not hasattr(graph, "control_outputs"):
        return  # TensorFlow does; or the graph is no function's
    ordered = [one for one in graph.get_operations() if one.type in ORDERED]
    for before, one in pairwise(ordered):
        if before not in one.control_inputs:
            one._add_control_input(before)
    graph.control_outputs.extend(one for one in ordered if one not in graph.control_outputs)


def _keep_order_in_gradients(helper: Any) -> Any:
    """Wraps TensorFlow's function that adds gradients to a graph, before the graph becomes a function."""

    @functools.wraps(helper)
    def with_order(*args: Any, **options: Any) -> Any:
        found = helper(*args, **options)
        keep_order(tf.compat.v1.get_default_graph())
        return found

    return with_order


gradients_util._GradientsHelper = _keep_order_in_gradients(gradients_util._GradientsHelper)


# --- values -----------------------------------------------------------------------------------------------------


def scaled(x: Any, factor: Any) -> Any:
    """Returns a tensor, or tf.IndexedSlices, times a factor.

    Floats narrower than float32 are scaled in float32 and rounded once: TensorFlow would round the factor first.
    """
    return _in_float32(x, lambda wide: wide * tf.cast(factor, wide.dtype))


def divided(x: Any, divisor: Any) -> Any:
    """Returns a tensor, or tf.IndexedSlices, divided by a number. Narrow floats are divided in float32."""
    return _in_float32(x, lambda wide: wide / tf.cast(divisor, wide.dtype))


def _in_float32(x: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(x, tf.IndexedSlices):
        return tf.IndexedSlices(_in_float32(x.values, function), x.indices, x.dense_shape)
    narrow = x.dtype.is_floating and x.dtype.size < tf.float32.size
    return tf.cast(function(tf.cast(x, tf.float32)), x.dtype) if narrow else function(x)


def zeros_after(x: Any) -> Any:
    """Returns zeros like x. In a graph x is still computed, because the other ranks wait for it."""
    with tf.control_dependencies([x]):
        return tf.zeros_like(x)


# --- gradients --------------------------------------------------------------------------------------------------


def _call_of(operation: Any) -> Call:
    of = operation.get_attr
    return Call(
        OPERATIONS[operation.type],
        functools.partial(_numbered.get, of("comm")),
        op=reduce.ops()[of("op")],
        root=of("root"),
        dest=of("dest"),
        source=of("source"),
        tag=of("tag"),
    )


def _gradient(operation: Any, gradient: Any) -> Any:
    call, gradient = _call_of(operation), tf.convert_to_tensor(gradient)
    if not call.linear:
        raise NotImplementedError(
            f"{call.name} with op {call.op!r} has no gradient; tf.stop_gradient(x) takes x as constant"
        )
    x = operation.inputs[0]
    kind = None if x.shape.rank is None else (tuple(x.shape.as_list()), x.dtype)
    found = run(gradient, call.transposed(kind))
    if call.name == "broadcast" and call.comm.rank != call.root:
        return zeros_after(found)
    return divided(found, call.comm.size) if call.name == "reduce_scatter" and call.op == "avg" else found


def _no_gradient(operation: Any, *gradients: Any) -> Any:
    raise NotImplementedError(
        f"{OPERATIONS[operation.type]} has no gradient; tf.stop_gradient(x) takes x as constant"
    )


for _operation, _name in OPERATIONS.items():
    tf.RegisterGradient(_operation)(_no_gradient if _name in ("send", "recv") else _gradient)
