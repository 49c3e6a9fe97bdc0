"""Handles of the CUDA streams of torch, CuPy and other libraries."""

from __future__ import annotations

import sys
from typing import Any

from ringreduce._engine import values
from ringreduce.annotations import Stream


def handle_of(stream: Stream) -> int:
    """Returns the handle of a stream.

    Raises:
        TypeError: stream is not a CUDA stream.
    """
    if isinstance(stream, int):
        return values.whole(stream, "stream")
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):  # torch's, CuPy's
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(f"stream must be a CUDA stream or its handle, not {type(stream).__name__}")


def current(array: Any, device: int) -> int | None:
    """Returns the handle of the current stream of the array's library, or None if the library has none."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(device).cuda_stream)
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return None
