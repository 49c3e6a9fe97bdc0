"""The functions of ringreduce.jax and ringreduce.tensorflow: they check arguments, and hand the call to the front."""

from __future__ import annotations

import functools
import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from ringreduce.annotations import OpName
from ringreduce.communicator.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.frameworks.traced.call import Call, Kind, check_op, rank_of, tag_of

Array = TypeVar("Array")
P = ParamSpec("P")
R = TypeVar("R")


class Front(ABC, Generic[Array]):
    """A framework's calls. Their docstrings have JAX's words, for which ``words`` has the framework's own."""

    array_type: str  # as annotations name it
    words: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def array(self, x: Any) -> Array:
        """Returns x as an array. Raises TypeError if calls do not take its dtype."""

    @abstractmethod
    def kind(self, x: Any) -> Kind:
        """Returns the shape and dtype of an array, or of a description of one."""

    @abstractmethod
    def run(self, x: Array | None, call: Call) -> Array:
        """Makes the call, or adds it to the program that is being traced. Returns its result; of a send, None."""

    def public(self, method: Callable[P, R]) -> Callable[P, R]:
        """Returns one of the methods below as a function of the front's module."""

        @functools.wraps(method)
        def function(*args: P.args, **kwargs: P.kwargs) -> R:
            return method(*args, **kwargs)

        for word, own in self.words.items():
            function.__doc__ = (function.__doc__ or "").replace(word, own)
        signature = inspect.signature(method)
        if signature.return_annotation == "Array":
            signature = signature.replace(return_annotation=self.array_type)
        function.__module__, function.__qualname__ = type(self).__module__, method.__name__
        function.__annotations__ = method.__annotations__ | {"return": signature.return_annotation}
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def all_reduce(self, x: Any, op: OpName = "sum", *, comm: Communicator | None = None) -> Array:
        """Combines every rank's x element by element. All ranks get the result, with the same bits.

        Args:
            x: an array of any shape, with the same shape and dtype on all ranks.
            op: how elements are combined, as for :class:`ringreduce.Communicator`. Averages of integers are rounded
                towards zero.
            comm: the communicator. None takes :func:`ringreduce.world`.

        Returns:
            An array of x's shape and dtype.

        Raises:
            ValueError: op is unknown, or x's dtype does not have it.
            TypeError: x's dtype is not supported, or comm is not a communicator.
        """
        return self._collective("all_reduce", x, comm, op=op)

    def all_gather(self, x: Any, *, comm: Communicator | None = None) -> Array:
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
        return self._collective("all_gather", x, comm)

    def reduce_scatter(self, x: Any, op: OpName = "sum", *, comm: Communicator | None = None) -> Array:
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
        return self._collective("reduce_scatter", x, comm, op=op)

    def all_to_all(self, x: Any, *, comm: Communicator | None = None) -> Array:
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
        return self._collective("all_to_all", x, comm)

    def broadcast(self, x: Any, root: int = 0, *, comm: Communicator | None = None) -> Array:
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
        return self._collective("broadcast", x, on, root=rank_of(root, "root", on))

    def send(self, x: Any, dest: int, *, tag: int = 0, comm: Communicator | None = None) -> None:
        """Sends x to a rank, which must call :func:`recv` (or the NumPy ``recv``) with the same tag.

        Up to 64 KiB, the program usually continues at once; above that, when the other rank has received the message.

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
        self.run(
            self.array(x), Call("send", weakref.ref(on), dest=rank_of(dest, "dest", on), tag=tag_of(tag))
        )

    def recv(self, x: Any, source: int, *, tag: int = 0, comm: Communicator | None = None) -> Array:
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
        call = Call(
            "recv",
            weakref.ref(on),
            source=rank_of(source, "source", on),
            tag=tag_of(tag),
            result=self.kind(x),
        )
        return self.run(None, call)

    def sendrecv(
        self,
        x: Any,
        out: Any = None,
        *,
        dest: int,
        source: int,
        tag: int = 0,
        comm: Communicator | None = None,
    ) -> Array:
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
        on, x = chosen(comm), self.array(x)
        call = Call(
            "sendrecv",
            weakref.ref(on),
            dest=rank_of(dest, "dest", on),
            source=rank_of(source, "source", on),
            tag=tag_of(tag),
            result=self.kind(x if out is None else out),
        )
        return self.run(x, call)

    def _collective(
        self, name: str, x: Any, comm: Communicator | None, *, op: str = "sum", root: int = 0
    ) -> Array:
        x = self.array(x)
        check_op(op, x.dtype.name)
        return self.run(x, Call(name, weakref.ref(chosen(comm)), op=op, root=root))
