"""Where the compiled part of the torch backend is, for the torch that is installed; builds it if it is nowhere.

CMake runs this file as a script while the package is built, so it imports nothing of the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

OLDEST = (2, 6)
# The folders of csrc/torch/versions/, newest first.
VERSIONS = {(2, 15): "from_2_15", (2, 7): "from_2_7", (2, 6): "from_2_6"}


def version() -> tuple[int, int]:
    """torch's, as numbers."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found
    return int(found[1]), int(found[2])


def name() -> str:
    """The module's file is named for the torch and the Python that it is compiled for, and loads in no other."""
    return f"_torch-{torch.__version__}-{sys.implementation.cache_tag}"


def folder() -> str:
    return next(folder for since, folder in VERSIONS.items() if version() >= since)


def includes() -> list[str]:
    return [str(path) for path in cpp_extension.include_paths()]


def library_folder() -> str:
    return str(Path(torch.__file__).parent / "lib")


if __name__ == "__main__":  # CMake lists
    print(name(), folder(), int(torch._C._GLIBCXX_USE_CXX11_ABI), library_folder(), *includes(), sep=";")
