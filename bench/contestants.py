"""Who can be measured, and how each is started. Register here: everything else takes what this file lists."""

from __future__ import annotations

import sys
from pathlib import Path

from harness import ROOT, Contestant, Question

# The package's own benchmark knows how the peers are started and called; it need not be installed for that.
PROGRAMS = ROOT / "ringreduce" / "bench"
sys.path.append(str(PROGRAMS))
import mpi  # noqa: E402

BUILD = ROOT / "build" / "peers"
CORES = mpi.CORES


def environment_of(name: str) -> Path:
    return ROOT / f".venv-{name}"


def launcher(name: str, question: Question) -> list[str]:
    return mpi.launcher(name, environment_of(name) / "bin" / "mpirun", question.ranks)


def mpi_environment(name: str, question: Question) -> dict[str, str]:
    return mpi.environment(name, environment_of(name), question.ranks)


# As shipped, Intel MPI and Open MPI give scratch memory back to the system and fault it in again in every
# large call, which makes one of 32 MiB two to four times slower. glibc's variables stop that.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


def mpi_from_c(vendor: str, tuned: bool = False) -> Contestant:
    program, name = BUILD / f"mpi_collectives-{vendor}", vendor + ("-tuned" if tuned else "")
    extra = KEEP_MEMORY if tuned else {}
    return Contestant(
        name,
        lambda question: [*launcher(vendor, question), str(program), *question.options(name)],
        lambda question: {**mpi_environment(vendor, question), **extra},
        (program, environment_of(vendor) / "bin" / "mpirun"),
        "tuned" if tuned else "peer",
    )


def mpi_from_python(vendor: str) -> Contestant:
    python, name = environment_of(vendor) / "bin" / "python", f"mpi4py-{vendor}"
    script = str(PROGRAMS / "mpi4py_collectives.py")
    return Contestant(
        name,
        lambda question: [*launcher(vendor, question), str(python), script, *question.options(name)],
        lambda question: mpi_environment(vendor, question),
        (python, environment_of(vendor) / ".ready"),
    )


def gloo() -> Contestant:
    own = environment_of("gloo") / "bin" / "python"  # made only where .venv has no torch
    python = own if own.exists() else ROOT / ".venv" / "bin" / "python"
    script = str(PROGRAMS / "gloo.py")
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
TUNED = tuple(f"{vendor}-tuned" for vendor in MPIS)


def all_contestants() -> dict[str, Contestant]:
    """By name, in the order of the tables' columns."""
    everybody = [
        ours_from_cpp("ordinary"),
        ours_from_cpp("shared"),
        ours_from_python(),
        *(mpi_from_c(vendor) for vendor in MPIS),
        *(mpi_from_c(vendor, tuned=True) for vendor in MPIS),
        *(mpi_from_python(vendor) for vendor in MPIS),
        gloo(),
        floor(),
    ]
    return {contestant.name: contestant for contestant in everybody}
