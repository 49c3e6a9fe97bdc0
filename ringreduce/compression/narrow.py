"""Gradients in narrower numbers: 16-bit floats, or 8-bit integers with scales."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression
from ringreduce.compression.gradients import Gradients, Tensor, as_floats, padded_rows

__all__ = ["HalfPrecision", "Int8Blocks"]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BLOCK = 256  # values that share a scale, as in the engine's format
LARGEST = 127


class Narrow(Compression):
    """Values travel in a narrow format and are added in float32.

    On a Communicator the engine does it. On a ProcessGroup torch does: rank r gets everybody's r-th part, adds these up
    and sends the average to all, so that every value is rounded twice, whatever the number of ranks.

    Attributes:
        _wire: the engine's name for the format.
        _multiple: how many values are encoded together.
    """

    _wire: str
    _multiple = 1

    @abstractmethod
    def _encode(self, rows: Tensor) -> Tensor:
        """float32 [rows, n] as uint8 [rows, bytes]."""

    @abstractmethod
    def _decode(self, rows: Tensor) -> Tensor:
        """The inverse of _encode, but for rounding."""

    def _average(self, gradients: Gradients) -> None:
        flat, group = gradients.flat, self._group
        if group.has_wire_formats:
            group.mean(flat, self._wire)
            return
        rows = padded_rows(flat, group.size, self._multiple)
        own = self._decode(group.all_to_all(self._encode(rows))).mean(0, keepdim=True)
        averages = self._decode(group.all_gather(self._encode(own)[0]))
        flat.copy_(averages.view(-1)[: flat.numel()])


class HalfPrecision(Narrow):
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
        self.dtype = self._wire = dtype

    def _encode(self, rows: Tensor) -> Tensor:
        return rows.to(DTYPES[self.dtype]).view(torch.uint8)

    def _decode(self, rows: Tensor) -> Tensor:
        return rows.view(DTYPES[self.dtype]).float()


class Int8Blocks(Narrow):
    """Gradients travel as 8-bit integers with a float32 scale for every 256, and are added in float32.

    A value is off by at most 1/254 of its block's largest magnitude each time that it is rounded (Dettmers, "8-Bit
    Approximations for Parallelism in Deep Learning", 2016, has blocks of this kind).
    """

    _wire, _multiple = "int8", BLOCK

    def _encode(self, rows: Tensor) -> Tensor:
        """Of rows [r, n] of whole blocks: codes, then scales, as bytes [r, n + 4 n / 256]."""
        blocks = rows.view(rows.shape[0], -1, BLOCK)
        scales = blocks.abs().amax(2, keepdim=True).div_(LARGEST)
        tiny = torch.finfo(torch.float32).tiny  # a block of zeros has the scale 0
        codes = (blocks / scales.clamp_min(tiny)).round_().to(torch.int8)
        return torch.cat([codes.view(torch.uint8).flatten(1), scales.flatten(1).view(torch.uint8)], 1)

    def _decode(self, rows: Tensor) -> Tensor:
        blocks = rows.shape[1] // (BLOCK + 4)
        codes, scales = rows.split([blocks * BLOCK, blocks * 4], 1)
        values = codes.contiguous().view(torch.int8).view(-1, blocks, BLOCK)
        return (values * as_floats(scales)[..., None]).flatten(1)
