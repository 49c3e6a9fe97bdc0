"""Gradients as 16-bit floats."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.two_shot import two_shot

__all__ = ["HalfPrecision"]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class HalfPrecision(Compression):
    """Gradients travel as 16-bit floats and are added in float32.

    (Micikevicius et al., "Mixed Precision Training", 2018, on what these formats do to gradients.)

    Args:
        dtype: "fp16", with 11 significant bits from 6e-5 to 65504, or "bf16", with 8 and float32's range. Gradients
            are averaged in a way that keeps sums in the range that the gradients have.

    Raises:
        ValueError: dtype is something else.
    """

    def __init__(self, dtype: str = "fp16", group: Any = None, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be 'fp16' or 'bf16', not {dtype!r}")
        super().__init__(group, timeout=timeout)
        self.dtype = dtype

    def _average(self, bucket: Bucket) -> None:
        if self._group.has_wire_formats:
            self._group.mean(bucket.flat, self.dtype)
        else:
            two_shot(self._group, bucket.flat, self._encode, self._decode, 1)

    def _encode(self, rows: Any) -> Any:
        return rows.to(DTYPES[self.dtype]).view(torch.uint8)

    def _decode(self, rows: Any) -> Any:
        return rows.view(DTYPES[self.dtype]).float()
