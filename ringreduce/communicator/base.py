"""Passes a communicator's calls to the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ringreduce import _engine
from ringreduce.annotations import Algorithm, Array, Op, Stream, Wire
from ringreduce.communicator.arrays import arrays
from ringreduce.communicator.handles import Handles
from ringreduce.communicator.ops import UserOp, as_bytes, foreign_dtype, own_exception
from ringreduce.communicator.work import GpuWork, Work
from ringreduce.errors import OpFailed

__all__ = ["DEFAULT_TIMEOUT", "Base"]

DEFAULT_TIMEOUT = 300.0


class Base:
    """The part of a communicator that collectives and messages share."""

    def __init__(self, engine: _engine.Communicator, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._c = engine
        self._handles = Handles(engine)
        self.timeout = timeout
        self.rank: int = engine.rank
        self.size: int = engine.size

    def _run(
        self,
        name: str,
        x: Array | None,
        out: Array | None,
        *,
        op: Op | _engine.UserOp = "sum",
        factor: float | None = None,
        root: int = 0,
        algorithm: Algorithm = "auto",
        wire: Wire | None = None,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
        input_counts: list[int] | None = None,
        output_counts: list[int] | None = None,
        in_order: bool = False,
    ) -> Any:
        if isinstance(op, UserOp):
            return self._run_by(
                op, name, x, out, factor=factor, root=root, algorithm=algorithm, wire=wire, timeout=timeout,
                async_op=async_op, stream=stream, input_counts=input_counts,
            )  # fmt: skip
        handle = self._handles.find(name, algorithm, root, in_order)
        source, target, after = x, out, None
        while True:
            try:
                work = self._c.collective(
                    name, source, target, op, factor, root, handle, timeout, input_counts, output_counts,
                    async_op, 0, 0, wire, stream,
                )  # fmt: skip
                break
            except BufferError:
                # An array is not contiguous: the engine works on packed copies, whose values are copied back to out.
                if source is not x or target is not out:
                    raise
                if out is not None:
                    arrays.check_writable(out, "x" if out is x else "out")
                same = source is target
                source = None if x is None else arrays.packed(x)
                target = source if same else None if out is None else arrays.packed(out)
                if target is not None and target is not out:
                    after = partial(arrays.unpack, target, out)
        if work is not None:
            return self._work(work, out, source if target is None else target, after, stream=stream)
        if after is not None:
            after()
        return out

    def _run_by(self, op: UserOp, name: str, x: Array | None, out: Array | None, **rest: Any) -> Any:
        """Runs a reduction with an operator that the program defines."""
        dtype = foreign_dtype(x)
        source: Any = x
        target: Any = out
        if dtype is not None:
            source = as_bytes(x, dtype)
            target = source if out is x else as_bytes(out, dtype)
            if rest["input_counts"] is not None:
                rest["input_counts"] = [count * dtype.itemsize for count in rest["input_counts"]]
        raised: list[BaseException] = []
        problem: BaseException | None = None
        try:
            work = self._run(
                name, source, target, op=op.engine(dtype, raised), in_order=not op.commutative, **rest
            )
        except OpFailed as error:
            problem = own_exception(error, raised)
            raised.clear()  # the engine's operator refers to it, which Python's garbage collection does not see
        if problem is not None:
            raise problem
        if not isinstance(work, Work):
            return out
        work._result = out
        work._raised = raised
        return work

    def _work(
        self,
        engine: _engine.Work | _engine.GpuWork,
        result: Any,
        array: Array | None,
        after: Callable[[], None] | None,
        with_source: bool = False,
        stream: Stream = None,
    ) -> Work[Any]:
        if isinstance(engine, _engine.GpuWork):
            return GpuWork(self, engine, result, array, after, stream)
        return Work(self, engine, result, after, with_source)
