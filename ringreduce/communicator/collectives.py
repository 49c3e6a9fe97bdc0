"""A communicator's collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from ringreduce import _engine
from ringreduce._engine import values
from ringreduce.annotations import A, Algorithm, Array, No, Op, Stream, Wire, Yes
from ringreduce.communicator.arrays import arrays, blocks
from ringreduce.communicator.base import Base
from ringreduce.communicator.work import Work
from ringreduce.schedules.collectives import COLLECTIVES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ringreduce.annotations import (
        Args,
        BlockArgs,
        BlockReductionArgs,
        ExchangeArgs,
        ReductionArgs,
    )

__all__ = ["Collectives"]


class Collectives(Base):
    """The collectives of a communicator. :class:`Communicator` describes the arguments that they share."""

    @overload
    def all_reduce(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: No = False,
        **rest: Unpack[ReductionArgs],
    ) -> A: ...  # fmt: skip
    @overload
    def all_reduce(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: Yes, **rest: Unpack[ReductionArgs]
    ) -> Work[A]: ...
    @overload
    def all_reduce(
        self, x: Array, op: Op = "sum", *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[ReductionArgs],
    ) -> Any: ...  # fmt: skip
    def all_reduce(
        self,
        x: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Combines every rank's x element by element. All ranks get the result, with the same bits.

        Args:
            out: an array of x's size and dtype for the result. None writes the result to x.
            factor: a real number by which this rank's values are multiplied before they are added. Each rank can
                pass a different one. Only for op "sum" and float or complex dtypes.

        Returns:
            out, or x if out is None.
        """
        return self._run(
            "all_reduce", x, x if out is None else out, op=op, factor=factor, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def reduce_scatter(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: No = False,
        **rest: Unpack[BlockReductionArgs],
    ) -> A: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: Yes, **rest: Unpack[BlockReductionArgs]
    ) -> Work[A]: ...
    @overload
    def reduce_scatter(
        self, x: Array, op: Op = "sum", *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[BlockReductionArgs],
    ) -> Any: ...  # fmt: skip
    def reduce_scatter(
        self,
        x: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Combines every rank's x element by element. Rank r gets the r-th block of rows of the result.

        Rows are along the first axis.

        Args:
            out: an array for this rank's block. None makes a new one.
            counts: the number of rows in each rank's block. None means equal blocks.

        Returns:
            This rank's block: out, or a new array.
        """
        sizes = blocks.sizes(x, counts, self.size)
        if out is None:
            out = blocks.new_block(x, counts, self.size, self.rank)
        return self._run(
            "reduce_scatter", x, out, op=op, factor=factor,
            input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def all_gather(
        self, x: A, *, out: A | None = None, async_op: No = False, **rest: Unpack[BlockArgs]
    ) -> A: ...
    @overload
    def all_gather(
        self, x: A, *, out: A | None = None, async_op: Yes, **rest: Unpack[BlockArgs]
    ) -> Work[A]: ...
    @overload
    def all_gather(
        self, x: Array, *, out: Array | None = None, async_op: bool = False, **rest: Unpack[BlockArgs]
    ) -> Any: ...
    def all_gather(
        self,
        x: Array,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Concatenates all ranks' x along the first axis, in rank order. Every rank gets the result.

        Args:
            out: an array for the result; x may be this rank's part of it. None makes a new one.
            counts: the number of rows in each rank's x. None means that all have the same number.

        Returns:
            out, or a new array.
        """
        sizes = blocks.sizes(x, counts, self.size)
        if out is None:
            out = blocks.new_whole(x, counts, self.size)
        return self._run(
            "all_gather", x, out, input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def broadcast(self, x: A, root: int = 0, *, async_op: No = False, **rest: Unpack[Args]) -> A: ...
    @overload
    def broadcast(self, x: A, root: int = 0, *, async_op: Yes, **rest: Unpack[Args]) -> Work[A]: ...
    @overload
    def broadcast(self, x: Array, root: int = 0, *, async_op: bool = False, **rest: Unpack[Args]) -> Any: ...
    def broadcast(
        self,
        x: Array,
        root: int = 0,
        *,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Copies the root's x to every other rank's x. Returns x."""
        return self._run(
            "broadcast", x, x, root=root, algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op,
            stream=stream,
        )  # fmt: skip

    @overload
    def reduce(
        self, x: A, root: int = 0, op: Op = "sum", *, out: A | None = None, async_op: No = False,
        **rest: Unpack[ReductionArgs],
    ) -> A | None: ...  # fmt: skip
    @overload
    def reduce(
        self, x: A, root: int = 0, op: Op = "sum", *, out: A | None = None, async_op: Yes,
        **rest: Unpack[ReductionArgs],
    ) -> Work[A | None]: ...  # fmt: skip
    @overload
    def reduce(
        self, x: Array, root: int = 0, op: Op = "sum", *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[ReductionArgs],
    ) -> Any: ...  # fmt: skip
    def reduce(
        self,
        x: Array,
        root: int = 0,
        op: Op = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Combines every rank's x element by element. Only the root gets the result.

        Args:
            out: on the root, an array of x's size and dtype for the result. None writes the result to x.

        Returns:
            On the root out, or x if out is None. None on all other ranks.
        """
        values.whole(root, "root", 0, self.size - 1, "a rank")
        target = (x if out is None else out) if self.rank == root else None
        return self._run(
            "reduce", x, target, op=op, factor=factor, root=root,
            algorithm=algorithm, wire=wire, timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def gather(
        self, x: A, root: int = 0, *, out: A | None = None, async_op: No = False, **rest: Unpack[BlockArgs]
    ) -> A | None: ...
    @overload
    def gather(
        self, x: A, root: int = 0, *, out: A | None = None, async_op: Yes, **rest: Unpack[BlockArgs]
    ) -> Work[A | None]: ...
    @overload
    def gather(
        self, x: Array, root: int = 0, *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[BlockArgs],
    ) -> Any: ...  # fmt: skip
    def gather(
        self,
        x: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Concatenates all ranks' x along the first axis, in rank order. Only the root gets the result.

        Args:
            out: on the root, an array for the result; None makes a new one. Ignored on other ranks.
            counts: the number of rows in each rank's x. None means that all have the same number.

        Returns:
            The result on the root, None on all other ranks.
        """
        values.whole(root, "root", 0, self.size - 1, "a rank")
        sizes = blocks.sizes(x, counts, self.size)
        if self.rank != root:
            out = None
        elif out is None:
            out = blocks.new_whole(x, counts, self.size)
        return self._run(
            "gather", x, out, root=root, input_counts=sizes, algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def scatter(
        self, x: A | None = None, root: int = 0, *, out: A | None = None, async_op: No = False,
        **rest: Unpack[BlockArgs],
    ) -> A: ...  # fmt: skip
    @overload
    def scatter(
        self, x: A | None = None, root: int = 0, *, out: A | None = None, async_op: Yes,
        **rest: Unpack[BlockArgs],
    ) -> Work[A]: ...  # fmt: skip
    @overload
    def scatter(
        self, x: Array | None = None, root: int = 0, *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[BlockArgs],
    ) -> Any: ...  # fmt: skip
    def scatter(
        self,
        x: Array | None = None,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Sends rank r the r-th block of rows of the root's x. Rows are along the first axis.

        Args:
            x: the array to divide. Required on the root, ignored on other ranks.
            out: an array for this rank's block. Required on all ranks but the root, because they do not know its
                shape.
            counts: the number of rows in each rank's block. None means equal blocks.

        Returns:
            This rank's block: out, or on the root a new array.
        """
        values.whole(root, "root", 0, self.size - 1, "a rank")
        if self.rank == root and x is None:
            raise ValueError("x is required on the root")
        if out is None:
            if x is None or self.rank != root:
                raise ValueError("out is required on every rank but the root")
            out = blocks.new_block(x, counts, self.size, self.rank)
        return self._run(
            "scatter", x if self.rank == root else None, out, root=root,
            input_counts=blocks.sizes(out, counts, self.size), algorithm=algorithm, wire=wire, timeout=timeout,
            async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def all_to_all(
        self, x: A, *, out: A | None = None, async_op: No = False, **rest: Unpack[ExchangeArgs]
    ) -> A: ...
    @overload
    def all_to_all(
        self, x: A, *, out: A | None = None, async_op: Yes, **rest: Unpack[ExchangeArgs]
    ) -> Work[A]: ...
    @overload
    def all_to_all(
        self, x: Array, *, out: Array | None = None, async_op: bool = False, **rest: Unpack[ExchangeArgs]
    ) -> Any: ...
    def all_to_all(
        self,
        x: Array,
        *,
        out: Array | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Sends the r-th block of rows of x to rank r, and receives one block from each rank.

        Rows are along the first axis.

        Args:
            out: an array for the received blocks, in rank order. It may be x if the blocks are equal. None makes a
                new one.
            send_counts: the number of rows in the block to each rank. None means equal blocks.
            recv_counts: the number of rows in the block from each rank. Give both counts or neither.

        Returns:
            out, or a new array.
        """
        if (send_counts is None) != (recv_counts is None):
            raise ValueError("give both send_counts and recv_counts, or neither")
        sent = blocks.sizes(x, send_counts, self.size, "send_counts")
        received = blocks.sizes(x, recv_counts, self.size, "recv_counts")
        if out is None:
            out = blocks.new_rows(x, arrays.rows(x) if recv_counts is None else sum(recv_counts))
        return self._run(
            "all_to_all", x, out, input_counts=sent, output_counts=received, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def scan(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: No = False,
        **rest: Unpack[ReductionArgs],
    ) -> A: ...  # fmt: skip
    @overload
    def scan(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: Yes, **rest: Unpack[ReductionArgs]
    ) -> Work[A]: ...
    @overload
    def scan(
        self, x: Array, op: Op = "sum", *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[ReductionArgs],
    ) -> Any: ...  # fmt: skip
    def scan(
        self,
        x: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Combines the x of ranks 0 to r element by element, on every rank r: an inclusive prefix reduction.

        Any op but "avg", because each rank's result combines another number of ranks.

        Args:
            out: an array of x's size and dtype for the result. None writes the result to x.

        Returns:
            out, or x if out is None.
        """
        return self._run(
            "scan", x, x if out is None else out, op=op, factor=factor, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def exscan(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: No = False,
        **rest: Unpack[ReductionArgs],
    ) -> A: ...  # fmt: skip
    @overload
    def exscan(
        self, x: A, op: Op = "sum", *, out: A | None = None, async_op: Yes, **rest: Unpack[ReductionArgs]
    ) -> Work[A]: ...
    @overload
    def exscan(
        self, x: Array, op: Op = "sum", *, out: Array | None = None, async_op: bool = False,
        **rest: Unpack[ReductionArgs],
    ) -> Any: ...  # fmt: skip
    def exscan(
        self,
        x: Array,
        op: Op = "sum",
        *,
        out: Array | None = None,
        factor: float | None = None,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Combines the x of ranks 0 to r - 1 element by element, on every rank r: an exclusive prefix reduction.

        Rank 0 gets the op's identity, the value that changes nothing: 0 for "sum" and bitwise ors, 1 for "prod", all
        bits set for "band", and the largest or smallest value of the dtype for "min" and "max". Any op but "avg".

        Args:
            out: an array of x's size and dtype for the result. None writes the result to x.

        Returns:
            out, or x if out is None.
        """
        return self._run(
            "exscan", x, x if out is None else out, op=op, factor=factor, algorithm=algorithm, wire=wire,
            timeout=timeout, async_op=async_op, stream=stream,
        )  # fmt: skip

    @overload
    def barrier(self, *, timeout: float | None = None, async_op: No = False) -> None: ...
    @overload
    def barrier(self, *, timeout: float | None = None, async_op: Yes) -> Work[None]: ...
    @overload
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work[None] | None: ...
    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work[None] | None:
        """Waits until all ranks of the group have called it."""
        work: Work[None] | None = self._run("barrier", None, None, timeout=timeout, async_op=async_op)
        return work


# A call of a few bytes takes less time than a Python function with so many arguments. The engine makes the usual calls
# itself, and leaves the others to these methods.
for _name in COLLECTIVES:
    setattr(Collectives, _name, _engine.fast_method(_name, getattr(Collectives, _name)))
