"""Builds the compiled part of the torch backend on first use, if the package was built without this torch.

See build/on_first_use.py. It needs a C++ compiler and Python's headers. Unlike torch's own loader of extensions, it
needs neither ninja nor setuptools.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

from ringreduce.build import on_first_use as building
from ringreduce.build.on_first_use import Recipe
from ringreduce.frameworks.torch import target


def module() -> Path:
    """Returns the compiled module's file for the installed torch. Builds it if it does not exist.

    Raises:
        RuntimeError: torch is too old; there is no compiler, or no Python.h; or the compiler failed.
        TimeoutError: another process has been building for half an hour.
    """
    target.check()
    return existing() or building.built(recipe())


def existing() -> Path | None:
    """Returns the compiled module's file for the installed torch, if it has been built."""
    built_along = target.PACKAGE / target.name()
    return built_along if built_along.exists() else building.existing(recipe())


def recipe() -> Recipe:
    """Returns how to build the module."""
    known = ".".join(map(str, target.NEWEST))
    newer = f", which is newer than the newest version that it knows, {known}"
    return Recipe(
        thing="its torch backend",
        target=f"torch {torch.__version__}",
        folder=f"torch-{torch.__version__}",
        name=target.name(),
        units=target.units(),
        includes=(target.versions_folder(), target.csrc()),
        ingredients=(
            torch.version.git_version,
            *target.OPTIONS,
            *building.extra_options(),
            *(f"{macro}={value}" for macro, value in target.definitions().items()),
        ),
        command=lambda unit, made: command(_compiler(), unit, made),
        doubt=newer if target.version() > target.NEWEST else "",
    )


def sources() -> list[Path]:
    """Returns the files that are compiled, and all headers of ours that they include."""
    return building.sources(target.units(), (target.csrc(), target.versions_folder()))


def _compiler() -> list[str]:
    needed = f"its torch backend must be built once for torch {torch.__version__}"
    words = building.compiler(
        needed,
        ", or install ringreduce on a machine with a compiler and this torch, with `pip install --no-build-isolation "
        "ringreduce`",
    )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise RuntimeError(
            f"ringreduce: {needed}, which needs Python's headers, but there is no {header}. Install them (`apt install "
            "python3-dev` or `dnf install python3-devel`)"
        )
    return words


def command(compiler: list[str], unit: Path, made: Path) -> list[str]:
    """Returns the command that compiles and links unit."""
    return [
        *compiler,
        *target.OPTIONS,
        *(f"-D{macro}={value}" for macro, value in target.definitions().items()),
        *(f"-I{folder}" for folder in (target.versions_folder(), target.csrc())),
        *(part for folder in _system_includes() for part in ("-isystem", folder)),
        *building.extra_options(),
        *(str(unit), "-shared", "-o", str(made)),
        *(str(building.LIBRARY), f"-Wl,-rpath,{building.LIBRARY.parent}"),
        *(f"-L{target.library_folder()}", *(f"-l{name}" for name in target.LIBRARIES)),
    ]


def _system_includes() -> list[str]:
    return [
        *target.includes(),
        *dict.fromkeys(sysconfig.get_path(kind) for kind in ("include", "platinclude")),
    ]
