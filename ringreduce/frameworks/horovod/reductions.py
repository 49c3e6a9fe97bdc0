"""Reductions: the all-reduce, which packs small tensors together, and the reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.adasum import adasum
from ringreduce.frameworks.horovod.job import job
from ringreduce.frameworks.horovod.kit import Kit
from ringreduce.frameworks.horovod.request import Operation, Signature

__all__ = ["AllReduceOperation", "Op", "ReduceScatterOperation", "all_reduce_of_zeros"]


class Op(IntEnum):
    """How tensors are combined."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


DIRECT: Any = {Op.Average: "avg", Op.Sum: "sum"}
NAMES: Any = {Op.Sum: "sum", Op.Average: "sum", Op.Min: "min", Op.Max: "max", Op.Product: "prod"}


def reduced(
    kit: Kit,
    run: Callable[[Any, str, float | None], Any],
    x: Any,
    op: Op,
    before: float,
    after: float,
    ranks: int,
) -> Any:
    """Runs a reduction and returns its result, scaled.

    Integers are scaled in float64 and truncated, and their average is rounded towards zero.

    Args:
        run: reduces a tensor, with the engine's op and factor.
        before, after: what values are multiplied by, before and after the reduction.
    """
    floating = kit.is_float(x)
    if op is Op.Average and kit.is_bool(x):
        raise ValueError("tensors of dtype bool have no average")
    if op is Op.Average and floating and before == 1.0:
        result = run(x, "avg", None)
    else:
        if before != 1.0 and not (floating and op in (Op.Sum, Op.Average)):
            x = kit.scaled(x, before)
            before = 1.0
        result = run(x, NAMES[op], None if before == 1.0 else before)
        if op is Op.Average and floating:
            after /= ranks
        elif op is Op.Average:
            kit.copy([result], [kit.quotient(result, ranks)])
    if after != 1.0:
        kit.copy([result], [kit.scaled(result, after)])
    return result


class Reduction(Operation):
    """What the operations that combine tensors have in common."""

    def __init__(
        self, name: str, kit: Kit, inputs: Sequence[Any], op: Op, before: float, after: float
    ) -> None:
        settings = ("op", op), ("prescale_factor", before), ("postscale_factor", after)
        kind = kit.kind
        self.signature = name, settings, tuple([(kind(tensor), tensor.shape) for tensor in inputs])
        self._kit, self.inputs = kit, inputs
        self._how = op, before, after


class AllReduceOperation(Reduction):
    """Combines tensors element by element. Those of a group, and small tensors of several calls, travel together.

    Args:
        inputs, outputs: tensors of the same dtypes and shapes; an output may be its input.
        result: what the call returns.
    """

    def __init__(
        self,
        kit: Kit,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        op: Op,
        before: float,
        after: float,
        result: Any,
    ) -> None:
        super().__init__("allreduce", kit, inputs, op, before, after)
        self.outputs, self.result = outputs, result

    @property
    def key(self) -> Hashable:
        return self.signature[1], self.signature[2][0][0]

    def run(self, comm: Communicator) -> Any:
        if len(self.inputs) > 1:
            return self.run_with(comm, [])[0]
        self._reduce(comm, self.inputs[0], self.outputs[0])
        return self.result

    def run_with(self, comm: Communicator, others: Sequence[AllReduceOperation]) -> list[Any]:
        everything = [self, *others]
        inputs = [tensor for one in everything for tensor in one.inputs]
        outputs = [tensor for one in everything for tensor in one.outputs]
        own = fusion(comm, self._kit)
        packed, alone = own.divide(inputs)
        for places in packed:
            flat, views = own.packed([inputs[place] for place in places])
            self._reduce(comm, flat, flat, [prod(view.shape) for view in views])
            self._kit.copy([outputs[place] for place in places], views)
        for place in alone:
            self._reduce(comm, inputs[place], outputs[place])
        return [one.result for one in everything]

    def _reduce(self, comm: Communicator, x: Any, out: Any, sizes: Sequence[int] | None = None) -> None:
        """Reduces x to out. sizes: the numbers of elements of the tensors in x, if it has several."""
        op, before, after = self._how
        if before == after == 1.0 and op in DIRECT and self._kit.is_float(x):
            comm.all_reduce(x, DIRECT[op], out=None if out is x else out)  # the usual case, in fewer steps
            return
        if op is Op.Adasum:
            flat = self._kit.scaled(x, before).reshape(-1)
            adasum(self._kit, comm, flat, [prod(x.shape)] if sizes is None else list(sizes))
            self._kit.copy([out], [self._kit.scaled(flat, after).reshape(out.shape)])
            return

        def run(values: Any, name: Any, factor: float | None) -> Any:
            return comm.all_reduce(values, name, out=None if out is values else out, factor=factor)

        reduced(self._kit, run, x, op, before, after, comm.size)


class Fusion:
    """Divides the tensors of a communicator into those that travel packed, and those that travel alone.

    Packing pays for small tensors only: a call costs microseconds, and so does a copy of some ten KiB, in and out.
    """

    ALONE = 64 << 10  # bytes from which a tensor travels alone, inside a host
    ALONE_FAR = 1 << 20  # the same between hosts, where a call costs more

    def __init__(self, transport: str, kit: Kit) -> None:
        self._kit = kit
        self._limit = job().settings.fusion_bytes
        self._most = min(self._limit, self.ALONE if transport in ("shm", "local") else self.ALONE_FAR)
        self._memory: dict[Any, Any] = {}  # by dtype

    def divide(self, tensors: Sequence[Any]) -> tuple[list[list[int]], list[int]]:
        """Returns the numbers of the tensors of each packed message, and those of the other tensors."""
        packed: list[list[int]] = []
        last: dict[
            Hashable, tuple[list[int], int]
        ] = {}  # the message that is not full, and its bytes, by dtype
        alone = []
        for number, tensor in enumerate(tensors):
            nbytes = tensor.nbytes
            if not 0 < nbytes < self._most:
                alone.append(number)
                continue
            kind = self._kit.kind(tensor)
            places, used = last.get(kind, ([], self._limit))
            if used + nbytes > self._limit:
                places, used = [], 0
                packed.append(places)
            places.append(number)
            last[kind] = places, used + nbytes
        alone += [places[0] for places in packed if len(places) == 1]
        return [places for places in packed if len(places) > 1], alone

    def packed(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Copies tensors of one dtype to flat memory. Returns this, and each tensor's place in it."""
        kit, like, counts = self._kit, tensors[0], [prod(tensor.shape) for tensor in tensors]
        total, kind = sum(counts), kit.kind(like)
        memory = self._memory.get(kind)
        if memory is None or len(memory) < total:
            memory = self._memory[kind] = kit.message(2 * total, like)
        ends = list(accumulate(counts))
        views = [
            memory[end - count : end].reshape(tensor.shape)
            for tensor, count, end in zip(tensors, counts, ends, strict=True)
        ]
        kit.copy(views, tensors)
        return memory[:total], views


_fusions: WeakKeyDictionary[Communicator, Fusion] = WeakKeyDictionary()


def fusion(comm: Communicator, kit: Kit) -> Fusion:
    if comm not in _fusions:
        _fusions[comm] = Fusion(comm.transport, kit)
    return _fusions[comm]


class ReduceScatterOperation(Reduction):
    """Combines tensors element by element. Rank r gets the r-th block of rows; the first blocks may have one more."""

    def __init__(
        self, kit: Kit, inputs: Sequence[Any], op: Op, before: float, after: float, grouped: bool
    ) -> None:
        super().__init__("reducescatter", kit, inputs, op, before, after)
        self._grouped = grouped

    def run(self, comm: Communicator) -> Any:
        found = [self._part(comm, tensor) for tensor in self.inputs]
        return found if self._grouped else found[0]

    def _part(self, comm: Communicator, x: Any) -> Any:
        each, rest = divmod(x.shape[0], comm.size)
        counts = [each + (rank < rest) for rank in range(comm.size)]

        out = self._kit.empty((counts[comm.rank], *x.shape[1:]), x)

        def run(values: Any, name: Any, factor: float | None) -> Any:
            return comm.reduce_scatter(values, name, out=out, counts=counts, factor=factor)

        return reduced(self._kit, run, x, *self._how, comm.size)


def all_reduce_of_zeros(kit: Kit, signature: Signature) -> Operation:
    """Returns the all-reduce of zeros with this signature, for a rank that has joined."""
    _, settings, kinds = signature
    zeros: Any = [kit.zeros([int(n) for n in shape], kind) for kind, shape in kinds]
    (_, op), (_, before), (_, after) = settings
    return AllReduceOperation(kit, zeros, zeros, op, before, after, None)
