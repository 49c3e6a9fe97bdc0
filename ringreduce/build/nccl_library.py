"""Paths of NCCL, if the system's loader does not find it, and of our library that programs load in its place."""

from __future__ import annotations

import importlib.util
from pathlib import Path

STAND_IN = Path(__file__).resolve().parents[1] / "libringreduce_nccl.so"


def find() -> str:
    """Returns the path of NCCL in an installed wheel, such as nvidia-nccl-cu13, or ""."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return ""
    for folder in (found.submodule_search_locations or []) if found else []:
        library = Path(folder) / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return ""
