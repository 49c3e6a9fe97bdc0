"""The functions of ringreduce.jax: they check arguments, and bind the primitive."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringreduce.annotations import Op
from ringreduce.communicator import Communicator
from ringreduce.communicator.foreign import Call, check_dtype, check_op, rank_of, tag_of
from ringreduce.communicator.world import chosen
from ringreduce.frameworks.jax.primitive import bind


def all_reduce(x: Any, op: Op = "sum", *, comm: Communicator | None = None) -> jax.Array:
    """Combines every rank's x element by element. All ranks get the result, with the same bits.

    Args:
        x: an array of any shape, with the same shape and dtype on all ranks.
        op: "sum", "avg", "prod", "min" or "max"; for integers and bool also "band", "bor" or "bxor". bool has no "avg",
            and complex numbers have only "sum", "avg" and "prod". Averages of integers are rounded towards zero.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of x's shape and dtype.

    Raises:
        ValueError: op is unknown, or x's dtype does not have it.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    return _collective("all_reduce", x, comm, op=op)


def all_gather(x: Any, *, comm: Communicator | None = None) -> jax.Array:
    """Concatenates all ranks' x along the first axis, in rank order. Every rank gets the result.

    Args:
        x: an array of shape [n, ...], with the same shape and dtype on all ranks.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of shape [size * n, ...].

    Raises:
        ValueError: x has no axis.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    return _collective("all_gather", x, comm)


def reduce_scatter(x: Any, op: Op = "sum", *, comm: Communicator | None = None) -> jax.Array:
    """Combines every rank's x element by element. Rank r gets the r-th block of rows of the result.

    Args:
        x: an array of shape [size * n, ...], with the same shape and dtype on all ranks.
        op: as for :func:`all_reduce`.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of shape [n, ...].

    Raises:
        ValueError: x's rows are not divisible among the ranks, op is unknown, or x's dtype does not have it.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    return _collective("reduce_scatter", x, comm, op=op)


def all_to_all(x: Any, *, comm: Communicator | None = None) -> jax.Array:
    """Sends the r-th block of rows of x to rank r, and receives one block from each rank.

    Args:
        x: an array of shape [size * n, ...], with the same shape and dtype on all ranks.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of x's shape: the received blocks, in rank order.

    Raises:
        ValueError: x's rows are not divisible among the ranks.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    return _collective("all_to_all", x, comm)


def broadcast(x: Any, root: int = 0, *, comm: Communicator | None = None) -> jax.Array:
    """Gives every rank the root's x.

    Args:
        x: an array of any shape, with the same shape and dtype on all ranks. Only the root's values matter.
        root: the rank whose values all ranks get.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of x's shape and dtype.

    Raises:
        ValueError: root is not a rank.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    on = chosen(comm)
    return _collective("broadcast", x, on, root=rank_of(root, "root", on))


def send(x: Any, dest: int, *, tag: int = 0, comm: Communicator | None = None) -> None:
    """Sends x to a rank, which must call :func:`recv` (or the NumPy ``recv``) with the same tag.

    Up to 64 KiB, the program usually goes on at once; above, when the other rank has received the message.

    Args:
        x: an array of any shape.
        dest: the receiving rank.
        tag: a 32-bit integer. Only a recv with the same tag takes the message.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Raises:
        ValueError: dest is not a rank, or tag does not fit into 32 bits.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    on = chosen(comm)
    bind(_array(x), Call("send", on, dest=rank_of(dest, "dest", on), tag=tag_of(tag)))


def recv(x: Any, source: int, *, tag: int = 0, comm: Communicator | None = None) -> jax.Array:
    """Receives the oldest message with this tag from a rank.

    Args:
        x: an array, or a ``jax.ShapeDtypeStruct``, of the shape and dtype of the result. Its values are not used.
        source: the sending rank.
        tag: as for :func:`send`.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of x's shape and dtype.

    Raises:
        ValueError: source is not a rank, or tag does not fit into 32 bits.
        TypeError: x's dtype is not supported, or comm is not a communicator.
    """
    on = chosen(comm)
    call = Call("recv", on, source=rank_of(source, "source", on), tag=tag_of(tag), result=_kind(x))
    return bind(None, call)


def sendrecv(
    x: Any, out: Any = None, *, dest: int, source: int, tag: int = 0, comm: Communicator | None = None
) -> jax.Array:
    """Sends x to one rank and receives a message from another, at the same time.

    Args:
        x: an array of any shape.
        out: an array, or a ``jax.ShapeDtypeStruct``, of the shape and dtype of the result. None: those of x.
        dest: the rank that gets x.
        source: the rank whose message is the result.
        tag: as for :func:`send`, of both messages.
        comm: the communicator. None takes :func:`ringreduce.world`.

    Returns:
        An array of the shape and dtype of out, or of x.

    Raises:
        ValueError: dest or source is not a rank, or tag does not fit into 32 bits.
        TypeError: a dtype is not supported, or comm is not a communicator.
    """
    on, x = chosen(comm), _array(x)
    call = Call(
        "sendrecv",
        on,
        dest=rank_of(dest, "dest", on),
        source=rank_of(source, "source", on),
        tag=tag_of(tag),
        result=_kind(x if out is None else out),
    )
    return bind(x, call)


# --- arguments ------------------------------------------------------------------------------------------------


def _collective(name: str, x: Any, comm: Communicator | None, *, op: str = "sum", root: int = 0) -> jax.Array:
    x = _array(x)
    check_op(op, x.dtype.name)
    return bind(x, Call(name, chosen(comm), op=op, root=root))


def _array(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    _check_dtype(x.dtype)
    return x


def _kind(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    _check_dtype(dtype)
    return tuple(x.shape), dtype


def _check_dtype(dtype: Any) -> None:
    check_dtype(getattr(dtype, "name", str(dtype)))
