"""Finds the installed peers, and starts those that need their own processes.

Gloo runs in the processes of the ranks, and so does MPI if mpirun started them. Otherwise each MPI is started with its
own mpirun. The candidates are the prefixes that the user names, this interpreter's environment, and the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ringreduce.studies.bench import mpi
from ringreduce.studies.bench.programs import Contestant

VENDORS = ("openmpi", "mpich", "impi")
SCRIPT = Path(__file__).with_name("mpi4py_collectives.py")
HOMES = "RINGREDUCE_BENCH_MPI"


@dataclass(frozen=True)
class Mpi:
    """An MPI that can be started.

    Attributes:
        vendor: "openmpi", "mpich" or "impi".
        home: The prefix that it is installed in.
        python: The Python that has an mpi4py for it.
        mpirun: Its mpirun.
    """

    vendor: str
    home: Path
    python: Path
    mpirun: Path

    def contestant(self, name: str) -> Contestant:
        """Returns a contestant that times this MPI from Python."""
        return Contestant(
            name,
            lambda question: [
                *mpi.launcher(self.vendor, self.mpirun, question.ranks),
                *(str(self.python), str(SCRIPT), *question.options(name)),
            ],
            lambda question: mpi.environment(self.vendor, self.home, question.ranks),
            (self.python, self.mpirun),
        )


def gloo_is_there() -> bool:
    return find_spec("torch") is not None


def mpi4py_is_there() -> bool:
    return find_spec("mpi4py") is not None


def installed_mpis(homes: Iterable[Path] | None = None) -> list[Mpi]:
    """Returns the first MPI of each vendor that is found.

    Args:
        homes: The prefixes to search first. None means those in RINGREDUCE_BENCH_MPI, which are separated by colons.

    Raises:
        ValueError: One of these prefixes has no MPI.
    """
    if homes is None:
        homes = map(Path, filter(None, os.environ.get(HOMES, "").split(os.pathsep)))
    named = {home: _at(home) for home in homes}
    for home, one in named.items():
        if one is None:
            raise ValueError(f"{HOMES}: {home} has no bin/mpirun for which an mpi4py works")
    on_path = shutil.which("mpirun")
    usual = [Path(sys.prefix), *([Path(on_path).parents[1]] if on_path else [])]
    found: dict[str, Mpi] = {}
    for one in [*named.values(), *(_at(home) for home in dict.fromkeys(usual))]:
        if one is not None:
            found.setdefault(one.vendor, one)
    return list(found.values())


def _at(home: Path) -> Mpi | None:
    """Returns the MPI in a prefix, with the mpi4py of that prefix's Python or of this one, or None."""
    home = home.absolute()
    mpirun = home / "bin" / "mpirun"
    if not mpirun.exists():
        return None
    pythons = [home / "bin" / "python", *([Path(sys.executable)] if mpi4py_is_there() else [])]
    for python in pythons:
        # This needs a new process, because importing mpi4py starts MPI.
        try:
            answer = subprocess.run(
                [str(python), str(SCRIPT), "--vendor"], capture_output=True, text=True, timeout=30, check=True,
                env={**os.environ, "I_MPI_ROOT": str(home), "LD_LIBRARY_PATH": _libraries(home)},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        return Mpi(answer.stdout.strip(), home, python, mpirun)
    return None


def _libraries(home: Path) -> str:
    return os.pathsep.join(filter(None, [str(home / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
