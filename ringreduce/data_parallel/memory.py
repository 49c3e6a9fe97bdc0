"""Memory that collectives use in place."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce import arrays

__all__ = ["allocate"]


def allocate(count: int, dtype: Any, device: Any) -> Any:
    """A tensor [count]; on the CPU in shared memory, where collectives need no staging copies."""
    if device.type == "cpu":
        return arrays.empty(count, dtype)
    return torch.empty(count, dtype=dtype, device=device)
