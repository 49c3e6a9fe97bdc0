"""libringreduce_mpi_transport.so, through which communicators send over MPI, and ranks meet."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ringreduce import _engine
from ringreduce.build import mpi_library as library
from ringreduce.build.mpi_library import MpiLibrary
from ringreduce.build.on_first_use import Recipe

__all__ = ["is_communicator", "join", "path"]


@functools.cache  # it runs a compiler
def path() -> Path:
    """Returns the file for the installed MPI library. Builds it, and raises, like :func:`library.built`."""
    return library.built(recipe)


def recipe(mpi: MpiLibrary) -> Recipe:
    """Returns how to build it for an MPI library."""
    return library.recipe(mpi, "mpi_transport", library.sources("transport"), takes="20 seconds")


def is_communicator(store: Any) -> bool:
    """Returns whether store is a communicator of mpi4py."""
    return hasattr(store, "Get_rank") and hasattr(store, "allgather")


def join(communicator: Any, timeout: float) -> _engine.MpiJob:
    """Joins the ranks of an mpi4py communicator. None joins all ranks of the job. Initializes MPI if necessary.

    Raises:
        RuntimeError: there is no MPI library, or no C++ compiler; or the compiler failed.
        ValueError: the communicator is of a different MPI library than the transport was built for.
        TimeoutError: not all ranks arrived in time.
    """
    if communicator is None:
        return _engine.join_mpi(str(path()), 0, "", timeout)
    from mpi4py import MPI

    return _engine.join_mpi(str(path()), MPI._addressof(communicator), MPI.Get_library_version(), timeout)
