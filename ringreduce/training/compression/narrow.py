"""Gradients as 16-bit floats, or as 8-bit integers with scales."""

from __future__ import annotations

from typing import Any, Literal

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.training.compression.method import Compression, Gradients

__all__ = ["HalfPrecision", "Int8Blocks"]


class HalfPrecision(Compression):
    """Sends gradients as 16-bit floats, and adds them in float32.

    Micikevicius et al., "Mixed Precision Training", 2018, describes the effect of these formats on gradients.

    Args:
        dtype: "fp16" has 11 significant bits and a range from 6e-5 to 65504. "bf16" has 8 significant bits and
            float32's range. Gradients are divided before they are added, so that sums stay in range.
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
    """Sends gradients as 8-bit integers with a float32 scale for every 256, and adds them in float32.

    Each rounding changes a value by at most 1/254 of the largest magnitude in its block. Dettmers, "8-Bit
    Approximations for Parallelism in Deep Learning", 2016, uses such blocks.
    """

    def _average(self, gradients: Gradients) -> None:
        self._group.mean(gradients.flat, "int8")
