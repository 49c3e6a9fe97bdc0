"""The sources, options and libraries of the torch backend's compiled part, for the installed torch.

CMake runs this file as a script (csrc/fronts/torch/torch.cmake), and build.py imports it when it builds the backend on
first use. It imports nothing from the package, because a script cannot.
"""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parents[2]
MODULE = "torch_backend"
OLDEST = (2, 6)
# The folders of csrc/fronts/torch/versions/, newest first. A newer torch gets the first one.
VERSIONS = {(2, 15): "from_2_15", (2, 7): "from_2_7", (2, 6): "from_2_6"}
NEWEST = next(iter(VERSIONS))

OPTIONS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python")


def version() -> tuple[int, int]:
    """Returns torch's version, as numbers."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found
    return int(found[1]), int(found[2])


def check() -> None:
    """Raises RuntimeError if this torch is too old, or has no torch.distributed."""
    if version() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(
            f"ringreduce's torch backend needs torch {oldest} or later; this is torch {torch.__version__}"
        )
    if not torch.distributed.is_available():
        raise RuntimeError(f"torch {torch.__version__} is built without torch.distributed")


def name() -> str:
    """Returns the name of the module's file, which identifies the torch and the Python that it is compiled for.

    The commit that torch was built from matters. Whether it has CUDA or ROCm does not.
    """
    release = torch.__version__.partition("+")[0]
    built_from = f"{torch.version.git_version} {definitions()}"
    digest = hashlib.sha256(built_from.encode()).hexdigest()[:8]
    return f"_torch-{release}-{digest}{sysconfig.get_config_var('EXT_SUFFIX')}"


def csrc() -> Path:
    """Returns the folder of the C++ sources: inside an installed package, or beside the package in the repository."""
    for folder in (PACKAGE.parent / "csrc", PACKAGE / "csrc"):
        if (folder / "fronts" / "torch" / "module.cpp").exists():
            return folder
    raise RuntimeError(f"ringreduce's C++ sources are missing from {PACKAGE}: reinstall ringreduce")


def versions_folder() -> Path:
    name = next(name for since, name in VERSIONS.items() if version() >= since)
    return csrc() / "fronts" / "torch" / "versions" / name


def units() -> list[Path]:
    """Returns the files to compile."""
    return sorted((csrc() / "fronts" / "torch").glob("*.cpp"))


def definitions() -> dict[str, str]:
    """Returns the macros. Those of pybind11 make it share types with torch, if torch's version defines them."""
    macros = {
        "RINGREDUCE_TORCH_MODULE": MODULE,
        "_GLIBCXX_USE_CXX11_ABI": str(int(torch.compiled_with_cxx11_abi())),
    }
    for macro in ("PYBIND11_COMPILER_TYPE", "PYBIND11_STDLIB", "PYBIND11_BUILD_ABI"):
        value = getattr(torch._C, f"_{macro}", None)
        if value:
            macros[macro] = f'"{value}"'
    return macros


def includes() -> list[str]:
    """Returns torch's include folders."""
    root = Path(torch.__file__).parent / "include"
    return [str(root), str(root / "torch" / "csrc" / "api" / "include")]


def library_folder() -> str:
    return str(Path(torch.__file__).parent / "lib")


def in_cmake() -> str:
    """Returns the values above as CMake variables."""
    values = {
        "name": [name()],
        "module": [MODULE],
        "versions": [str(versions_folder())],
        "definitions": [f"{macro}={value}" for macro, value in definitions().items()],
        "includes": includes(),
        "lib": [library_folder()],
        "libraries": list(LIBRARIES),
    }
    return "\n".join(f"set(torch_{key} [==[{';'.join(listed)}]==])" for key, listed in values.items())


if __name__ == "__main__":
    try:
        check()
    except RuntimeError as error:
        sys.exit(str(error))
    print(in_cmake())
