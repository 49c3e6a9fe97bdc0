"""The command line and environment that start each MPI.

They follow the MPI's documentation for the number of cores of this host, and were the fastest that were found. Every
rank has a core of its own. If there are more ranks than cores, they are bound to the cores in turn, and yield while
they wait. This module uses only the standard library, because the programs in bench/ of a checkout use it too.
"""

from __future__ import annotations

import os
from pathlib import Path

CORES = len(os.sched_getaffinity(0))


def launcher(vendor: str, mpirun: Path, ranks: int) -> list[str]:
    """Returns the command line that precedes the program's. ``vendor`` is "openmpi", "mpich" or "impi"."""
    command = [str(mpirun), "-n", str(ranks)]
    if vendor == "openmpi":
        # At small sizes, ranks bound to cores are 1.4 times faster, also if there are more ranks than cores.
        crowded = ranks > CORES
        bound = "core:overload-allowed" if crowded else "core"
        yielding = str(int(crowded))
        return [*command, "--oversubscribe", "--bind-to", bound, "--mca", "mpi_yield_when_idle", yielding]
    if vendor == "mpich":
        return [*command, "-bind-to", "core"]
    return command  # Intel MPI binds its ranks, and detects that they must yield


def environment(vendor: str, home: Path, ranks: int) -> dict[str, str]:
    """Returns the variables to add to the environment. ``home`` is the prefix that the MPI is installed in."""
    if vendor == "openmpi":  # its mpirun refuses to run as root, as containers do, without these
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if vendor == "mpich":
        # Its shared-memory collectives spin without yielding. With more ranks than cores, a call takes 5 ms.
        return {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"} if ranks > CORES else {}
    return {
        "I_MPI_ROOT": str(home),
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": str(home / "lib"),
        "I_MPI_FABRICS": "shm",  # on one host it need not search for a network; the speed is the same
        # I_MPI_THREAD_YIELD and I_MPI_WAIT_MODE were not faster with 4 ranks on 2 cores.
    }
