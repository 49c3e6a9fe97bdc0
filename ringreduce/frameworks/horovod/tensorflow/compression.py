"""Compression of tensors before an all-reduce."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringreduce.frameworks.horovod.compression import Compressor

__all__ = ["Compression", "Compressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tf.cast(tensor, tf.float16), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """The choices for the ``compression`` argument."""

    none = Compressor
    fp16 = FP16Compressor
