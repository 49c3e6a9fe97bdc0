"""libringreduce_mpi_transport.so, by which communicators send through MPI, or meet by its means."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ringreduce import _engine, building
from ringreduce.building import Recipe
from ringreduce.mpi import library
from ringreduce.mpi.library import Library

__all__ = ["is_communicator", "join", "path"]


@functools.cache  # a compiler is asked
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
    units = sorted((building.csrc() / "mpi" / "transport").glob("*.cpp"))
    return library.recipe(mpi, "mpi_transport", units, takes="20 seconds")


def is_communicator(store: Any) -> bool:
    """Whether it is one of mpi4py's."""
    return hasattr(store, "Get_rank") and hasattr(store, "allgather")


def join(communicator: Any, timeout: float) -> _engine.MpiJob:
    """The ranks of an mpi4py communicator; None: all ranks of the job. Starts MPI where nobody has.

    Raises:
        RuntimeError: as for :func:`path`.
        ValueError: the communicator is one of another MPI library than the one that is built for.
        TimeoutError: not all of its ranks came in time.
    """
    if communicator is None:
        return _engine.join_mpi(str(path()), 0, "", timeout)
    from mpi4py import MPI

    return _engine.join_mpi(str(path()), MPI._addressof(communicator), MPI.Get_library_version(), timeout)
