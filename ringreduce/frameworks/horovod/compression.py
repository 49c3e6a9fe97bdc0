"""The base of the classes that compress tensors before an all-reduce."""

from __future__ import annotations

from typing import Any

__all__ = ["Compressor"]


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
