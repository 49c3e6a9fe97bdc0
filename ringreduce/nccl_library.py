"""Where pip may have put NCCL's library: the engine asks, if the system's loader knows of none."""

from __future__ import annotations

import importlib.util
from pathlib import Path


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
