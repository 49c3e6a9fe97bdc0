"""Compression of tensors before an all-reduce."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.frameworks.horovod.compression import Compressor

__all__ = ["Compression", "Compressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.to(torch.float16), tensor.dtype) if tensor.is_floating_point() else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The choices for the ``compression`` argument."""

    none = Compressor
    fp16 = FP16Compressor
