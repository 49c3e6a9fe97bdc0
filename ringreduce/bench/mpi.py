"""How each MPI is started, as its own documentation would have it on a host with this many cores, and as was
found fastest: every rank on one core of its own, or, when ranks outnumber cores, bound to the cores in turn
and yielding while it waits. Standard library only: the programs of a checkout's bench/ use it too.
"""

from __future__ import annotations

import os
from pathlib import Path

CORES = len(os.sched_getaffinity(0))


def launcher(vendor: str, mpirun: Path, ranks: int) -> list[str]:
    """The command line before the program's; ``vendor`` is "openmpi", "mpich" or "impi"."""
    command = [str(mpirun), "-n", str(ranks)]
    if vendor == "openmpi":
        # Bound to cores it is 1.4 times faster at small sizes than unbound, with more ranks than cores too.
        crowded = ranks > CORES
        bound = "core:overload-allowed" if crowded else "core"
        yielding = str(int(crowded))
        return [*command, "--oversubscribe", "--bind-to", bound, "--mca", "mpi_yield_when_idle", yielding]
    if vendor == "mpich":
        return [*command, "-bind-to", "core"]
    return command  # Intel MPI binds its ranks and finds out by itself that it must yield


def environment(vendor: str, home: Path, ranks: int) -> dict[str, str]:
    """What to add to the environment; ``home`` is the prefix that the MPI is installed in."""
    if vendor == "openmpi":  # containers run as root; without these its mpirun refuses to
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if vendor == "mpich":
        # Its shared-memory collectives spin without yielding: 5 ms a call once ranks outnumber cores.
        return {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"} if ranks > CORES else {}
    return {
        "I_MPI_ROOT": str(home),
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": str(home / "lib"),
        "I_MPI_FABRICS": "shm",  # one host: no search for a network, same speed
        # It has I_MPI_THREAD_YIELD and I_MPI_WAIT_MODE; with 4 ranks on 2 cores neither was faster.
    }
