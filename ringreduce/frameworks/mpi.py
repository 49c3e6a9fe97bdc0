"""libringreduce_mpi.so, which takes over the collectives of MPI programs through LD_PRELOAD."""

from __future__ import annotations

from pathlib import Path

from ringreduce.build import mpi_library as library
from ringreduce.build.mpi_library import MpiLibrary
from ringreduce.build.on_first_use import Recipe

_LARGE_COUNTS_SINCE = 4  # the MPI standard that has functions ending in _c


def path(mpicc: str | None = None) -> Path:
    """Returns the file for the MPI library of this mpicc. Builds it, and raises, like :func:`library.built`."""
    return library.built(recipe, mpicc)


def recipe(mpi: MpiLibrary) -> Recipe:
    """Returns how to build it for an MPI library."""
    return library.recipe(mpi, "mpi", units(mpi), (f"RINGREDUCE_MPI_LIBRARY={mpi.family}",))


def units(mpi: MpiLibrary) -> list[Path]:
    """Returns the sources for an MPI library."""
    left_out = ["large_"] if mpi.standard < _LARGE_COUNTS_SINCE else []
    left_out += ["fortran_mpich"] if mpi.family == "openmpi" else ["fortran_openmpi"]
    return [unit for unit in library.sources("interpose") if not unit.name.startswith(tuple(left_out))]
