"""Collectives and messages for JAX arrays on the CPU, eager and inside ``jax.jit``.

>>> import jax, ringreduce, ringreduce.jax as rj
>>> comm = ringreduce.init()
>>> step = jax.jit(lambda gradient: rj.all_reduce(gradient, "avg"))

Every function takes ``comm``, a :class:`ringreduce.Communicator`; None takes :func:`ringreduce.world`. Under ``jit``,
it is part of the compiled program, which does not keep it alive: hold it for as long as programs call it. Calls run in
the order in which the program makes them, whether or not values depend on each other, so all ranks run them in the same
order if they run the same program.

- Arrays are on the CPU. Their dtype is one that :class:`ringreduce.Communicator` lists, and JAX has.
- ``jit``, ``scan``, ``fori_loop``, ``while_loop``, ``cond``, ``checkpoint`` and ``vmap`` work. ``vmap`` makes one call
  with all of the batch; all ranks must batch alike. :func:`send` cannot be batched, and :func:`recv` is called once.
- Derivatives are those of the sum of all ranks' results: the transpose of an all_gather is a reduce_scatter, that of a
  sum is a sum. "min", "max", "prod" and the bitwise ops have none, nor do :func:`send` and :func:`recv`.

Invalid arguments raise ValueError or TypeError when the call is traced. If ranks disagree, or one dies, every rank gets
a ``jax.errors.JaxRuntimeError`` that names the rank and the reason. JAX runs programs in the background, and raises it
where a result is first needed. After it, only programs on a new communicator run, such as the one that
:meth:`ringreduce.Communicator.shrink` returns.
"""

from ringreduce.requirement import unmet as _unmet

try:
    import jax as _jax  # noqa: F401
except ImportError as _error:
    raise _unmet("ringreduce.jax", "jax", "0.6", _error, "ringreduce[jax]") from None

from ringreduce.frameworks.jax.calls import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    recv,
    reduce_scatter,
    send,
    sendrecv,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "recv",
    "reduce_scatter",
    "send",
    "sendrecv",
]
