"""Builds the torch backend's module for a torch that is unpacked, not installed.

    torch_module.py TORCH LIBRARY FOLDER SUFFIX

Such a torch cannot be imported without all that it needs, among it gigabytes of CUDA. The module is for the Python that
runs this, on the platform of SUFFIX. It is built as on first use (ringreduce/frameworks/torch/build.py), but finds
libringreduce.so beside it.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace


def stand_in(folder: Path) -> ModuleType:
    """torch, as far as ringreduce/frameworks/torch/target.py asks."""
    if b"_PYBIND11_BUILD_ABI" in (folder / "lib" / "libtorch_python.so").read_bytes():
        raise RuntimeError(f"{folder} says how pybind11 was built only when it is imported")
    version = ModuleType("torch.version")
    exec((folder / "version.py").read_text(), vars(version))
    torch = ModuleType("torch")
    vars(torch).update(
        __file__=str(folder / "__init__.py"),
        __version__=version.__version__,
        _C=SimpleNamespace(),
        compiled_with_cxx11_abi=lambda: True,  # all wheels since 2.7
        distributed=SimpleNamespace(is_available=lambda: True),
        version=version,
    )
    return torch


def main(folder: Path, library: Path, into: Path, suffix: str) -> None:
    sys.modules["torch"] = stand_in(folder / "torch")
    sysconfig.get_config_vars()["EXT_SUFFIX"] = suffix
    from packaging.specifiers import SpecifierSet

    from ringreduce.build import on_first_use as building
    from ringreduce.frameworks.torch import build

    (metadata,) = folder.glob("*.dist-info/METADATA")
    (needed,) = re.findall(r"^Requires-Python: *(.+)$", metadata.read_text(), re.MULTILINE)
    here = ".".join(map(str, sys.version_info[:3]))
    if here not in SpecifierSet(needed):
        print(f"{folder.name} does not run with Python {here}")
        return
    building.LIBRARY = library
    recipe = build.recipe()
    there = {f"-Wl,-rpath,{library.parent}": "-Wl,-rpath,$ORIGIN"}
    beside = replace(recipe, command=lambda *of: [there.get(word, word) for word in recipe.command(*of)])
    module = shutil.copy(building.built(beside), into)
    print(f"{Path(module).stat().st_size / 1e6:.2f} MB  {Path(module).name}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4])
