"""Communicators that send through MPI, under each library's own launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.mpi.conftest import PROGRAMS, ROOT, STAY

pytestmark = pytest.mark.timeout(300)

EVERYTHING = [
    "collectives",
    "messages",
    "background",
    "groups",
    "joined_again",
    "meeting",
    "mismatch",
    "lateness",
]
GIANT = 6 << 30  # bytes of memory for two ranks, each with one of 1 GiB, and MPI's own


@pytest.fixture
def launch(mpi, cache):
    """Runs parts of the program on so many ranks."""

    def run(ranks, *parts, options=(), through=(), **variables):
        variables = {
            "PYTHONPATH": str(ROOT),
            "MPICC": str(mpi.mpicc),
            "RINGREDUCE_CACHE": str(cache),
            "RINGREDUCE_TRANSPORT": "mpi",
        } | variables
        words = [*through, mpi.python, PROGRAMS / "over_mpi.py", *parts]
        return mpi.run(ranks, *words, options=options, **variables)

    return run


def good(ended, *parts):
    assert ended.code == 0, ended.said + ended.errors
    assert [line.split()[0] for line in ended.said.splitlines()] == list(parts)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_all_that_a_communicator_does(launch, ranks):
    good(launch(ranks, *EVERYTHING), *EVERYTHING)


@pytest.mark.parametrize("ranks", [1, 4])
def test_beside_mpi4py(launch, ranks):
    good(launch(ranks, "beside_mpi4py"), "beside_mpi4py")


def test_with_one_thread(launch):
    """MPI_THREAD_FUNNELED: what needs a second thread is refused, and all else works."""
    good(launch(2, "one_thread"), "one_thread")


def test_a_gigabyte(launch):
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < GIANT:
        pytest.skip("there is too little memory")
    good(launch(2, "giant"), "giant")


def test_a_killed_rank_ends_the_job(launch):
    start = time.monotonic()
    assert launch(3, "death").code != 0
    assert time.monotonic() - start < 20


def test_the_others_go_on_where_the_launcher_lets_them(mpi, launch, tmp_path):
    # MPICH's launcher kills the others' process groups now and then, though it is told not to.
    through = {"openmpi": [], "mpich": ["setsid", "--wait"]}[mpi.vendor]
    start = time.monotonic()
    ended = launch(3, "death", options=STAY[mpi.vendor], through=through, FOLDER=str(tmp_path))
    said = [tmp_path / "0", tmp_path / "2"]
    while time.monotonic() - start < 20 and not all(file.exists() for file in said):
        time.sleep(0.05)
    missing = [file.name for file in said if not file.exists()]
    assert not missing, f"ranks {missing} say nothing; the launcher said: {ended.said} {ended.errors}"
    for file in said:
        assert file.read_text() == "rank 1 died; 2 go on"


def test_ranks_of_another_mpi_are_told(mpi, cache):
    """Ranks that another launcher has started are each alone, as far as this MPI knows."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MPICC": str(mpi.mpicc), "RINGREDUCE_CACHE": str(cache)}
    variables |= {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    run = subprocess.run(
        [mpi.python, "-c", "import ringreduce; ringreduce.init(transport='mpi', timeout=10)"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ValueError: this is rank 0 of 2, but the MPI" in run.stderr, run.stderr


def test_it_needs_an_mpi():
    code = "import ringreduce; ringreduce.init(transport='mpi')"
    variables = {"MPICC": "no-such-mpicc"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "there is no no-such-mpicc: an MPI library is needed" in run.stderr, run.stderr
