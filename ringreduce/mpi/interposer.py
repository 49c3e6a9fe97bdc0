"""libringreduce_mpi.so, which takes over MPI's collectives in a program that is started with it in LD_PRELOAD."""

from __future__ import annotations

from pathlib import Path

from ringreduce import building
from ringreduce.building import Recipe
from ringreduce.mpi import library
from ringreduce.mpi.library import Library

_LARGE_COUNTS_SINCE = 4  # the MPI standard that has functions ending in _c


def path(mpicc: str | None = None) -> Path:
    """The file for an MPI library; builds it if there is none.

    Args:
        mpicc: the library's compiler wrapper; None: what MPICC names, or the mpicc on the PATH.

    Raises:
        RuntimeError: there is no MPI library, or no C++ compiler; or compiling has failed.
        TimeoutError: another process has been building for half an hour.
    """
    return building.built(recipe(library.find(mpicc)))


def recipe(mpi: Library) -> Recipe:
    """What it is built from, and how."""
    return library.recipe(mpi, "mpi", units(mpi), (f"RINGREDUCE_MPI_LIBRARY={mpi.family}",))


def units(mpi: Library) -> list[Path]:
    """The sources for this library."""
    found = sorted((building.csrc() / "mpi" / "interpose").glob("*.cpp"))
    left_out = ["large_"] if mpi.standard < _LARGE_COUNTS_SINCE else []
    left_out += [] if mpi.family == "openmpi" else ["fortran_openmpi"]
    return [unit for unit in found if not unit.name.startswith(tuple(left_out))]
