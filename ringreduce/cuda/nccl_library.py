"""Where libraries are: NCCL's, if the system's loader knows of none, and ours that programs load in place of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

STAND_IN = Path(__file__).resolve().parents[1] / "libringreduce_nccl.so"


def find() -> str:
    """The path of the library in an installed wheel (nvidia-nccl-cu13 and the like), or nothing."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return ""
    for folder in (found.submodule_search_locations or []) if found else []:
        library = Path(folder) / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return ""
