"""libringreduce_mpi.so, which takes over MPI's collectives in a program that is started with it in LD_PRELOAD."""

from __future__ import annotations

from pathlib import Path

from ringreduce.building import Recipe
from ringreduce.mpi import library
from ringreduce.mpi.library import Library

_LARGE_COUNTS_SINCE = 4  # the MPI standard that has functions ending in _c


def path(mpicc: str | None = None) -> Path:
    """The file for the MPI library of this mpicc. Builds it, and raises, as :func:`library.built`."""
    return library.built(recipe, mpicc)


def recipe(mpi: Library) -> Recipe:
    """What it is built from, and how."""
    return library.recipe(mpi, "mpi", units(mpi), (f"RINGREDUCE_MPI_LIBRARY={mpi.family}",))


def units(mpi: Library) -> list[Path]:
    """The sources for this library."""
    left_out = ["large_"] if mpi.standard < _LARGE_COUNTS_SINCE else []
    left_out += ["fortran_mpich"] if mpi.family == "openmpi" else ["fortran_openmpi"]
    return [unit for unit in library.sources("interpose") if not unit.name.startswith(tuple(left_out))]
