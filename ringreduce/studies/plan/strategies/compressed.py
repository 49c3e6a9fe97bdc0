"""DataParallel whose gradients travel compressed (docs/training.md#compression)."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from ringreduce.studies.plan.job import Job, Parameter
from ringreduce.studies.plan.operations import Memory, Operations
from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.strategies.strategy import Bucket, replicated

__all__ = ["BF16", "FP8", "FP16", "Int8", "PowerSGD", "SignMajority", "TopK"]

BLOCK = 256  # values that share a scale in int8 and fp8
WHOLE = 4  # bytes of the values that hooks work on
COMMUNICATION = "communication"


class _Hook(DataParallel):
    """ringreduce.DataParallel with a communication hook, which has a group and a thread of its own."""

    agrees_on: ClassVar[str] = "verdict"


class Wire(DataParallel):
    """ringreduce.DataParallel with ``wire``: the engine encodes values slice by slice, while others travel."""

    element_bytes: ClassVar[float]
    also_16_bit: ClassVar[bool] = False

    @classmethod
    def encoded(cls, parameter: Parameter) -> float:
        """Returns the bytes of a gradient in messages."""
        narrows = parameter.dtype == "float32" or (cls.also_16_bit and parameter.dtype != "float64")
        return cls.element_bytes * parameter.numel if narrows else parameter.nbytes

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        narrow = [one for one in bucket.parameters if self.encoded(one) < one.nbytes]
        if not narrow:
            return super().send(job, world, steps, name, bucket, ready)
        seconds = job.coder(self.title).element_s * sum(one.numel for one in narrow)
        nbytes = sum(self.encoded(one) for one in bucket.parameters)
        return [
            steps.compute(f"{name} code", "compression", seconds if world > 1 else 0.0, [ready], "coding"),
            steps.exchange(name, "all_reduce", nbytes, [ready], algorithm="coded"),
        ]


class BF16(Wire):
    """16-bit floats with float32's range."""

    title: ClassVar[str] = "bf16"
    element_bytes: ClassVar[float] = 2


class FP16(Wire):
    """16-bit floats."""

    title: ClassVar[str] = "fp16"
    element_bytes: ClassVar[float] = 2


class Int8(Wire):
    """8-bit integers with scales."""

    title: ClassVar[str] = "int8"
    element_bytes: ClassVar[float] = 1 + 4 / BLOCK
    also_16_bit: ClassVar[bool] = True


class FP8(Int8):
    """8-bit floats with scales."""

    title: ClassVar[str] = "fp8"


class PowerSGD(_Hook):
    """compression.PowerSGD: two all-reduces of narrow matrices for each bucket, and three computations around them.

    Attributes:
        matrix_rank, min_compression_rate: As for :class:`ringreduce.compression.PowerSGD`.
    """

    title: ClassVar[str] = "PowerSGD"
    parts: ClassVar[tuple[float, float, float]] = (0.4, 0.45, 0.15)  # of the coder's passes over a matrix
    matrix_rank: PositiveInt = 4
    min_compression_rate: float = Field(default=2.0, ge=1)

    def _rank(self, parameter: Parameter) -> int:
        """Returns the rank of a matrix's factors, or 0 if it is not compressed."""
        if parameter.rows is None:
            return 0
        rows, columns = parameter.rows, parameter.numel // parameter.rows
        rank = min(self.matrix_rank, rows, columns)
        return rank if parameter.numel > (rows + columns) * rank * self.min_compression_rate else 0

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        ranks = [self._rank(one) for one in bucket.parameters]
        matrices = [(one, rank) for one, rank in zip(bucket.parameters, ranks, strict=True) if rank]
        vectors = sum(one.numel for one, rank in zip(bucket.parameters, ranks, strict=True) if not rank)
        sizes = (
            sum(rank * (one.rows or 0) for one, rank in matrices) + vectors,
            sum(rank * one.numel // (one.rows or 1) for one, rank in matrices),
        )
        coder = job.coder("power_sgd")
        seconds = coder.element_s * sum(one.numel for one, _ in matrices) + coder.tensor_s * len(matrices)
        last = ready
        for number, part in enumerate(self.parts):
            coding = part * seconds if world > 1 else 0.0
            last = steps.compute(f"{name} code", "compression", coding, [last], COMMUNICATION)
            if number < 2 and sizes[number]:
                last = steps.exchange(f"{name} factor", "all_reduce", WHOLE * sizes[number], [last])
        return [last]

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job, WHOLE * job.elements)  # errors that are fed back


class TopK(_Hook):
    """compression.TopK: each rank gathers the largest elements of all.

    Attributes:
        fraction: As for :class:`ringreduce.compression.TopK`.
    """

    title: ClassVar[str] = "TopK"
    fraction: PositiveFloat = Field(default=0.01, le=1)

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        elements, coder = sum(one.numel for one in bucket.parameters), job.coder("top_k")
        count = math.ceil(self.fraction * elements)
        seconds = coder.element_s * elements if world > 1 else 0.0
        chosen = steps.compute(f"{name} code", "compression", seconds, [ready], COMMUNICATION)
        gathered = steps.exchange(name, "all_gather", 8 * count * world, [chosen])
        added = coder.received_s * count * world if world > 1 else 0.0
        return [steps.compute(f"{name} decode", "compression", added, [gathered], COMMUNICATION)]

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job, WHOLE * job.elements)


class SignMajority(_Hook):
    """compression.SignMajority: signs go to the ranks that count them, and the majority's signs to all.

    Attributes:
        block: As for :class:`ringreduce.compression.SignMajority`.
    """

    title: ClassVar[str] = "SignMajority"
    block: PositiveInt = 1024

    def send(
        self, job: Job, world: int, steps: Operations, name: str, bucket: Bucket, ready: int
    ) -> list[int]:
        elements, coder = sum(one.numel for one in bucket.parameters), job.coder("sign_majority")
        nbytes = elements / 8 + 4 * elements / self.block
        last = ready
        for collective in ("all_to_all", "all_gather"):
            seconds = coder.element_s * elements / 2 if world > 1 else 0.0
            last = steps.compute(f"{name} code", "compression", seconds, [last], COMMUNICATION)
            last = steps.exchange(name, collective, nbytes, [last])
        return [last]

    def memory(self, job: Job, world: int) -> Memory:
        return replicated(job, WHOLE * job.elements * (1 + 1 / world))  # errors of votes and of counts
