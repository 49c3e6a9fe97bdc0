"""The JAX primitive behind all calls, and what it is under JAX's transformations.

A call has an ordered effect. JAX threads a token through everything in a program that has it, loops included, and from
one program to the next. The token is an operand and a result of each custom call, so XLA can neither reorder them nor
run them side by side. has_side_effect alone only keeps XLA from leaving a call out. One effect serves all
communicators: with one for each, ranks could start calls of two communicators in different orders, and wait for each
other. JAX offers effects to packages only in jax._src.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core, dispatch, effects
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ringreduce._engine import reduce
from ringreduce.communicator import Communicator
from ringreduce.frameworks.jax import library
from ringreduce.frameworks.traced.call import BY_ROWS, MESSAGES, Call, shape_after
from ringreduce.living import Living


class _Order(effects.Effect):  # type: ignore[misc]  # mypy does not follow jax's types
    def __repr__(self) -> str:
        return "ringreduce"


ORDER = _Order()
for _allowed in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_Order)

call_p = Primitive("ringreduce")
call_p.multiple_results = True


def bind(x: Any, call: Call) -> Any:
    """Makes the call. Returns its result, or None if it has none."""
    _meet(call.comm)
    results = call_p.bind(*(() if x is None else (x,)), call=call)
    return results[0] if results else None


_known: Living[Communicator] = Living()
_dropped: set[tuple[Any, Any]] = set()  # engines of communicators, and tokens that come after their programs


def _meet(comm: Communicator) -> None:
    _free_dropped()
    if comm not in _known:
        _forget_failure()
        _known.add(comm)
        weakref.finalize(comm, _drop, comm._c).atexit = False


def _drop(engine: Any) -> None:
    """Keeps what programs in the background may still call, of a communicator that the process has dropped."""
    if token := dispatch.runtime_tokens.current_tokens.get(ORDER):
        _dropped.add((engine, token))
    _free_dropped()


def _free_dropped() -> None:
    for one in list(_dropped):
        if one[1]._buf.is_ready():
            _dropped.discard(one)


def _forget_failure() -> None:
    """Waits for all programs so far. One that failed leaves a token that would fail every later one."""
    token = dispatch.runtime_tokens.current_tokens.get(ORDER)
    try:
        if token is not None:
            token.block_until_ready()
    except jax.errors.JaxRuntimeError:
        dispatch.runtime_tokens.clear()


@atexit.register
def _end() -> None:
    """Runs before communicators are closed, so that programs in the background can end.

    After an exception their calls may never end, because peers may never make theirs: then they are given up.
    """
    if getattr(sys, "last_value", None) is not None:
        for engine in [comm._c for comm in _known] + [engine for engine, _ in list(_dropped)]:
            engine.leave()
    _forget_failure()


# --- shapes ---------------------------------------------------------------------------------------------------


def _result(call: Call, x: Any | None) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    if call.name in MESSAGES:
        return call.result
    assert x is not None
    return shape_after(call.name, x.shape, call.comm.size), x.dtype


def _abstract(*arrays: Any, call: Call) -> Any:
    result = _result(call, *arrays) if arrays else call.result
    return [core.ShapedArray(*result)] if result else [], {ORDER}


call_p.def_effectful_abstract_eval(_abstract)


# --- execution ------------------------------------------------------------------------------------------------

dispatch.simple_impl(call_p)


def _lower(context: Any, *arrays: Any, call: Call) -> Any:
    if tuple(context.module_context.platforms) != ("cpu",):
        there = " and ".join(context.module_context.platforms)
        raise ValueError(
            f"ringreduce.jax takes arrays on the CPU, but {call.name} is compiled for {there}: "
            "use jax.default_device(jax.devices('cpu')[0]) or JAX_PLATFORMS=cpu"
        )
    library.load()
    rule = jax.ffi.ffi_lowering(f"ringreduce_{call.name}", has_side_effect=True)
    with_token = context.replace(
        avals_in=[core.abstract_token, *context.avals_in], avals_out=[core.abstract_token, *context.avals_out]
    )
    token, *results = rule(with_token, context.tokens_in.get(ORDER), *arrays, **_attributes(call, context))
    context.set_tokens_out(mlir.TokenSet({ORDER: token}))
    return results


def _attributes(call: Call, context: Any) -> dict[str, np.int64]:
    """Returns what the handlers in csrc/fronts/jax take."""
    found = {"comm": call.comm._c.number}
    if call.name in MESSAGES:
        ends = {"send": ("dest",), "recv": ("source",), "sendrecv": ("dest", "source")}[call.name]
        found |= {end: getattr(call, end) for end in (*ends, "tag")}
    else:  # elements of the whole buffer, or of a rank's block
        count = prod((context.avals_out if call.name == "reduce_scatter" else context.avals_in)[0].shape)
        if call.name == "all_to_all":
            count //= call.comm.size
        found |= {"count": count, "op": reduce.ops().index(call.op), "root": call.root}
    return {name: np.int64(value) for name, value in found.items()}


mlir.register_lowering(call_p, _lower)


# --- derivatives ----------------------------------------------------------------------------------------------


def _jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    constant = all(type(tangent) is ad.Zero for tangent in tangents)
    if not constant and not call.linear:
        what = f"{call.name} with op {call.op!r}" if call.op != "sum" else call.name
        raise NotImplementedError(f"{what} has no derivative; jax.lax.stop_gradient(x) takes x as constant")
    results = call_p.bind(*primals, call=call)
    if constant:
        return results, [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    return results, call_p.bind(*tangents, call=call)


def _transpose(cotangents: Any, x: Any, *, call: Call) -> Any:
    (cotangent,) = cotangents
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    (found,) = call_p.bind(cotangent, call=call.transposed((x.aval.shape, x.aval.dtype)))
    if call.name == "broadcast" and call.comm.rank != call.root:
        return [jnp.zeros_like(found)]
    return [_divided(found, call.comm.size) if call.name == "reduce_scatter" and call.op == "avg" else found]


def _divided(x: Any, divisor: int) -> Any:
    """Returns x / divisor. Narrow floats are divided in float32: in their own dtype JAX would round the divisor."""
    wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    return (wide / divisor).astype(x.dtype)


ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose


# --- batches --------------------------------------------------------------------------------------------------


def _batch(arrays: Any, axes: Any, *, call: Call) -> Any:
    """The batch becomes part of the array: behind the rows if the call divides them, in front for messages."""
    (x,), (axis,) = arrays, axes
    if call.name == "send":
        raise NotImplementedError("send cannot be batched, because recv cannot know of it: use sendrecv")
    if call.name in BY_ROWS and x.ndim < 2:
        raise ValueError(f"{call.name} needs an array with at least one axis")
    if call.name in BY_ROWS:
        x, axis = jnp.moveaxis(x, axis, 1), 1
    elif call.result is not None:
        shape, dtype = call.result
        x, axis = jnp.moveaxis(x, axis, 0), 0
        call = replace(call, result=((x.shape[0], *shape), dtype))
    return call_p.bind(x, call=call), [axis]


batching.primitive_batchers[call_p] = _batch
