"""The contestants, and how each is started. Register new ones here; the other programs use this list."""

from __future__ import annotations

import sys
from pathlib import Path

from ringreduce.bench import mpi, peers
from ringreduce.bench.programs import Contestant, Question

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "ringreduce" / "studies" / "bench"
BUILD = ROOT / "build" / "peers"
MPIS = peers.VENDORS
TAKES_TURNS = getattr(sys, "_is_gil_enabled", lambda: True)()  # whether Python's threads do
TUNED = tuple(f"{vendor}-tuned" for vendor in MPIS)


def environment_of(name: str) -> Path:
    return ROOT / f".venv-{name}"


def home_of(vendor: str) -> peers.Mpi:
    """Returns the MPI that `make bench-peers` installs."""
    home = environment_of(vendor)
    return peers.Mpi(vendor, home, home / "bin" / "python", home / "bin" / "mpirun")


def mpi_environment(name: str, question: Question) -> dict[str, str]:
    return mpi.environment(name, environment_of(name), question.ranks)


# By default, Intel MPI and Open MPI give scratch memory back to the system and fault it in again in every large call,
# which makes a call of 32 MiB two to four times slower. glibc's variables prevent this.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


def mpi_from_c(vendor: str, tuned: bool = False) -> Contestant:
    program, name = BUILD / f"mpi_collectives-{vendor}", vendor + ("-tuned" if tuned else "")
    extra, mpirun = KEEP_MEMORY if tuned else {}, home_of(vendor).mpirun
    return Contestant(
        name,
        lambda question: [
            *mpi.launcher(vendor, mpirun, question.ranks),
            *(str(program), *question.options(name)),
        ],
        lambda question: {**mpi_environment(vendor, question), **extra},
        (program, mpirun),
        "tuned" if tuned else "peer",
    )


def gloo_python() -> Path:
    own = environment_of("gloo") / "bin" / "python"  # exists only if .venv has no torch
    return own if own.exists() else ROOT / ".venv" / "bin" / "python"


def gloo() -> Contestant:
    python, script = gloo_python(), str(PROGRAMS / "gloo.py")
    return Contestant(
        "gloo",
        lambda question: [str(python), script, *question.options("gloo")],
        lambda question: {"PYTHONWARNINGS": "ignore"},
        (python,),
    )


def floor() -> Contestant:
    def command(question: Question) -> list[str]:
        return [str(BUILD / "floor"), *question.options("floor"), "--collective", "scale"]

    return Contestant("floor", command, needs=(BUILD / "floor",), kind="floor")


def ours_from_cpp(memory: str, algorithm: str = "auto") -> Contestant:
    """Returns our C++ program. `memory` is "ordinary" or "shared" (allocated by ringreduce.empty)."""
    program = ROOT / "build" / "bench" / "bench_collectives"
    name = "ringreduce" + ("" if memory == "ordinary" else f"-{memory}")
    name += "" if algorithm == "auto" else f":{algorithm}"
    extra = ["--memory", memory, "--algorithm", algorithm]
    return Contestant(
        name, lambda question: [str(program), *question.options(name), *extra], needs=(program,), kind="ours"
    )


def ours_from_python(
    threads: bool = False, python: Path = Path(sys.executable), name: str = ""
) -> Contestant:
    """Returns our Python program, which protocol.py measures like mpi4py and Gloo. It starts its own ranks."""
    name = name or ("ringreduce-threads" if threads else "ringreduce-python")
    start = [str(python), "-m", "bench.peers.ringreduce_collectives", *["--threads"] * threads]
    return Contestant(name, lambda question: [*start, *question.options(name)], needs=(python,), kind="ours")


def all_contestants() -> dict[str, Contestant]:
    """Returns all contestants by name, in the order of the tables."""
    everybody = [
        ours_from_cpp("ordinary"),
        ours_from_cpp("shared"),
        ours_from_python(),
        *([] if TAKES_TURNS else [ours_from_python(threads=True)]),
        *(mpi_from_c(vendor) for vendor in MPIS),
        *(mpi_from_c(vendor, tuned=True) for vendor in MPIS),
        *(home_of(vendor).contestant(f"mpi4py-{vendor}") for vendor in MPIS),
        gloo(),
        floor(),
    ]
    return {contestant.name: contestant for contestant in everybody}
