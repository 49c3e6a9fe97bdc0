"""Gradients in narrower numbers: 16-bit floats, or 8-bit integers with scales."""

from __future__ import annotations

from typing import Any, Literal

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression, Gradients

__all__ = ["HalfPrecision", "Int8Blocks"]


class HalfPrecision(Compression):
    """Gradients travel as 16-bit floats and are added in float32.

    (Micikevicius et al., "Mixed Precision Training", 2018, on what these formats do to gradients.)

    Args:
        dtype: "fp16", with 11 significant bits from 6e-5 to 65504, or "bf16", with 8 and float32's range. Gradients
            are averaged in a way that keeps sums in the range that the gradients have.
    """

    def __init__(
        self, dtype: Literal["fp16", "bf16"] = "fp16", group: Any = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.dtype: Literal["fp16", "bf16"] = dtype
        self._require("dtype", dtype in ("fp16", "bf16"), "be 'fp16' or 'bf16'")
        super().__init__(group, timeout=timeout)

    def _average(self, gradients: Gradients) -> None:
        self._group.mean(gradients.flat, self.dtype)


class Int8Blocks(Compression):
    """Gradients travel as 8-bit integers with a float32 scale for every 256, and are added in float32.

    A value is off by at most 1/254 of its block's largest magnitude each time that it is rounded (Dettmers, "8-Bit
    Approximations for Parallelism in Deep Learning", 2016, has blocks of this kind).
    """

    def _average(self, gradients: Gradients) -> None:
        self._group.mean(gradients.flat, "int8")
