"""libringreduce_mpi_transport.so, by which communicators send through MPI, or meet by its means."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ringreduce import _engine
from ringreduce.building import Recipe
from ringreduce.mpi import library
from ringreduce.mpi.library import Library

__all__ = ["is_communicator", "join", "path"]


@functools.cache  # a compiler is asked
def path() -> Path:
    """The file for the MPI library that is there. Builds it, and raises, as :func:`library.built`."""
    return library.built(recipe)


def recipe(mpi: Library) -> Recipe:
    """What it is built from, and how."""
    return library.recipe(mpi, "mpi_transport", library.sources("transport"), takes="20 seconds")


def is_communicator(store: Any) -> bool:
    """Whether it is one of mpi4py's."""
    return hasattr(store, "Get_rank") and hasattr(store, "allgather")


def join(communicator: Any, timeout: float) -> _engine.MpiJob:
    """The ranks of an mpi4py communicator; None: all ranks of the job. Starts MPI where nobody has.

    Raises:
        RuntimeError: there is no MPI library, or no C++ compiler; or compiling has failed.
        ValueError: the communicator is one of another MPI library than the one that is built for.
        TimeoutError: not all of its ranks came in time.
    """
    if communicator is None:
        return _engine.join_mpi(str(path()), 0, "", timeout)
    from mpi4py import MPI

    return _engine.join_mpi(str(path()), MPI._addressof(communicator), MPI.Get_library_version(), timeout)
