"""Compression of tensors before an all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Compressor", "compressions"]


class Compressor:
    """Compresses a tensor before an all-reduce and restores its result. The base class changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and what :meth:`decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the result as a tensor of the kind that was compressed."""
        return tensor


def compressions(is_float: Callable[[Any], bool], cast: Callable[[Any, Any], Any], float16: Any) -> Any:
    """Returns the class Compression for a framework's tensors."""

    class FP16Compressor(Compressor):
        """Sends floating-point tensors as float16."""

        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return (cast(tensor, float16), tensor.dtype) if is_float(tensor) else (tensor, None)

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor if ctx is None else cast(tensor, ctx)

    class Compression:
        """The choices for the ``compression`` argument."""

        none = Compressor
        fp16 = FP16Compressor

    return Compression
