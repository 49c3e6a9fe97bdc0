"""CUDA streams as Python's libraries have them: of each only the handle matters."""

from __future__ import annotations

import sys
from typing import Any

from ringreduce._engine import values

Stream = Any  # a handle, torch's or CuPy's stream, or anything that has __cuda_stream__


def handle_of(stream: Stream) -> int:
    """The handle of a stream.

    Raises:
        TypeError: it is none.
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
    """The handle of the stream that the array's library launches on now; None where it has none."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(device).cuda_stream)
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return None
