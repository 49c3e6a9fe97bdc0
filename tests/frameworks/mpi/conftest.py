"""The MPI libraries that `make test` sets up, and programs that run under them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from ringreduce.bench.mpi import environment, launcher
from tests.conftest import slowly

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 100.0  # seconds for one launch
VENDORS = ("openmpi", "mpich")
# What makes a launcher let the others live when a rank dies.
STAY = {"openmpi": ["--enable-recovery"], "mpich": ["-disable-auto-cleanup"]}
COUNT = re.compile(r"^ringreduce: rank (\d+): (MPI_\w+): (\d+) served, (\d+) handed on$", re.MULTILINE)


class Ended:
    """What became of a launch."""

    def __init__(self, code: int, said: str, errors: str) -> None:
        self.code, self.said, self.errors = code, said, errors

    def counts(self, rank: int = 0) -> dict[str, tuple[int, int]]:
        """Calls served and handed on, by function, as a rank has said."""
        found = COUNT.findall(self.errors)
        return {name: (int(ours), int(theirs)) for of, name, ours, theirs in found if int(of) == rank}


class Mpi:
    """An MPI library in a virtual environment of its own."""

    def __init__(self, vendor: str, folder: Path) -> None:
        self.vendor, self.folder = vendor, folder
        self.home = ROOT / f".venv-{vendor}"
        self.mpicc = self.home / "bin" / "mpicc"
        self.python = self.home / "bin" / "python"

    def compile(self, *sources: str, libraries=()) -> Path:
        """A program; named for its first source."""
        program = self.folder / f"{sources[0].removesuffix('.c')}-{self.vendor}"
        if not program.exists():
            options = shlex.split("-std=gnu11 -O1 -Wall -Wextra -Werror -pthread")
            paths = [*(str(PROGRAMS / source) for source in sources), *map(str, libraries)]
            subprocess.run([self.mpicc, *options, *paths, "-o", program], check=True, timeout=LIMIT)
        return program

    def run(self, ranks, *words, preload=None, options=(), bound=True, **variables) -> Ended:
        """Starts `words` on the ranks."""
        mpirun = self.home / "bin" / "mpirun"
        start = launcher(self.vendor, mpirun, ranks) if bound else [str(mpirun), "-n", str(ranks)]
        command = [*start, *options]
        own = os.environ | environment(self.vendor, self.home, ranks) | variables
        own |= {"LD_PRELOAD": str(preload)} if preload else {}
        process = subprocess.Popen(
            [*command, *map(str, words)],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            # Asked first: an mpirun ends its ranks, which sit in groups of their own.
            os.killpg(process.pid, signal.SIGTERM)
            said, errors = process.communicate(timeout=200)
            pytest.fail(f"{shlex.join(map(str, words))} hangs on {ranks} ranks: {said} {errors}")
        return Ended(process.returncode, said, errors)


def installed(vendor: str, tmp_path_factory) -> Mpi:
    found = Mpi(vendor, tmp_path_factory.mktemp(vendor))
    if not found.mpicc.exists():
        pytest.skip(f"there is no {found.mpicc}; `make test` sets it up")
    return found


@pytest.fixture(scope="session", params=[*slowly("openmpi"), "mpich"])
def mpi(request, tmp_path_factory) -> Mpi:
    return installed(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def other_mpi(mpi, tmp_path_factory) -> Mpi:
    return installed(next(vendor for vendor in VENDORS if vendor != mpi.vendor), tmp_path_factory)


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where this checkout's tests keep what they build."""
    return ROOT / "build" / "tests" / "cache"
