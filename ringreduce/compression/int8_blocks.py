"""Gradients as 8-bit integers."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.compression.base import Compression
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.two_shot import as_floats, two_shot

__all__ = ["Int8Blocks"]

BLOCK = 256  # values that share a scale, as in the engine's format
LARGEST = 127
Tensor = Any  # torch.Tensor


class Int8Blocks(Compression):
    """Gradients travel as 8-bit integers with a float32 scale for every 256, and are added in float32.

    A value is off by at most 1/254 of its block's largest magnitude each time that it is rounded (Dettmers, "8-Bit
    Approximations for Parallelism in Deep Learning", 2016, has blocks of this kind). On a Communicator the engine does
    it (``wire="int8"``), on a ProcessGroup torch.
    """

    def _average(self, bucket: Bucket) -> None:
        if self._group.has_wire_formats:
            self._group.mean(bucket.flat, "int8")
        else:
            two_shot(self._group, bucket.flat, encode, decode, BLOCK)


def encode(rows: Tensor) -> Tensor:
    """Of rows [r, n] of whole blocks: codes, then scales, as bytes [r, n + 4 n / 256]."""
    blocks = rows.view(rows.shape[0], -1, BLOCK)
    scales = blocks.abs().amax(2, keepdim=True).div_(LARGEST)
    tiny = torch.finfo(torch.float32).tiny  # a block of zeros has the scale 0
    codes = (blocks / scales.clamp_min(tiny)).round_().to(torch.int8)
    return torch.cat([codes.view(torch.uint8).flatten(1), scales.flatten(1).view(torch.uint8)], 1)


def decode(rows: Tensor) -> Tensor:
    blocks = rows.shape[1] // (BLOCK + 4)
    codes, scales = rows.split([blocks * BLOCK, blocks * 4], 1)
    values = codes.contiguous().view(torch.int8).view(-1, blocks, BLOCK)
    return (values * as_floats(scales)[..., None]).flatten(1)
