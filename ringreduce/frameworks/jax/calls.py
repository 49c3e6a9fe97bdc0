"""The functions of ringreduce.jax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ringreduce.frameworks.jax.primitive import bind
from ringreduce.frameworks.traced.call import Call, Kind, check_dtype
from ringreduce.frameworks.traced.front import Front


class _Front(Front[jax.Array]):
    array_type = "jax.Array"

    def array(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        _check_dtype(x.dtype)
        return x

    def kind(self, x: Any) -> Kind:
        x = x if hasattr(x, "dtype") else jnp.asarray(x)
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        _check_dtype(dtype)
        return tuple(x.shape), dtype

    def run(self, x: jax.Array | None, call: Call) -> jax.Array:
        return bind(x, call)


def _check_dtype(dtype: Any) -> None:
    check_dtype(getattr(dtype, "name", str(dtype)))


_front = _Front()
all_reduce = _front.public(_front.all_reduce)
all_gather = _front.public(_front.all_gather)
reduce_scatter = _front.public(_front.reduce_scatter)
all_to_all = _front.public(_front.all_to_all)
broadcast = _front.public(_front.broadcast)
send = _front.public(_front.send)
recv = _front.public(_front.recv)
sendrecv = _front.public(_front.sendrecv)
