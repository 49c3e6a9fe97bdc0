"""Communicators that send through MPI, all or between hosts only, under each library's own launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import slow_rows, slowly
from tests.frameworks.mpi.conftest import PROGRAMS, ROOT, STAY
from tests.gpu.probe import HAS_CARD
from tests.gpu.ranks import EMULATED_LIBRARY

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
    """Runs parts of the program on so many ranks, or on one for each letter: those with the same share a host."""

    def run(ranks, *parts, options=(), through=(), becomes="mpi", **variables):
        if isinstance(ranks, str):
            variables |= {"HOSTS": ranks, "RINGREDUCE_TRANSPORT": "shm+mpi"}
            ranks = len(ranks)
        variables = {
            "PYTHONPATH": str(ROOT),
            "MPICC": str(mpi.mpicc),
            "RINGREDUCE_CACHE": str(cache),
            "RINGREDUCE_TRANSPORT": "mpi",
            "BECOMES": becomes,
        } | variables
        words = [*through, mpi.python, PROGRAMS / "over_mpi.py", *parts]
        return mpi.run(ranks, *words, options=options, **variables)

    return run


def good(ended, *parts):
    assert ended.code == 0, ended.said + ended.errors
    assert [line.split()[0] for line in ended.said.splitlines()] == list(parts)


@pytest.mark.parametrize("ranks", [2, *slowly(3, 4, 5)])
def test_all_that_a_communicator_does(launch, ranks):
    good(launch(ranks, *EVERYTHING), *EVERYTHING)


def test_rounds_of_two_ranks(launch):
    good(launch(2, "rounds"), "rounds")


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["001", *slowly("0101", "00112")])
def test_all_that_it_does_with_shared_memory_inside_hosts(launch, hosts):
    good(launch(hosts, *EVERYTHING, becomes="shm+mpi"), *EVERYTHING)


@pytest.mark.parametrize("case", [("00", "shm"), *slowly(("0011", "shm+mpi"), ("01", "mpi"))])
def test_what_becomes_of_shm_and_mpi(launch, case):
    hosts, becomes = case
    part = EVERYTHING[0]
    good(launch(hosts, part, becomes=becomes), part)


@pytest.mark.parametrize("case", [(1, "mpi"), *slowly((4, "mpi"), ("0011", "shm+mpi"))])
def test_beside_mpi4py(launch, case):
    ranks, becomes = case
    good(launch(ranks, "beside_mpi4py", becomes=becomes), "beside_mpi4py")


@pytest.mark.parametrize(("ranks", "becomes"), [(2, "mpi"), ("001", "shm+mpi")])
def test_with_one_thread(launch, ranks, becomes):
    """MPI_THREAD_FUNNELED: what needs a second thread is refused, and all else works."""
    good(launch(ranks, "one_thread", becomes=becomes), "one_thread")


@pytest.mark.slow
@pytest.mark.skipif(
    HAS_CARD or not EMULATED_LIBRARY.exists(), reason="on a card, or not built: make emulated"
)
@pytest.mark.parametrize("case", [*slowly(("01", "mpi")), ("001", "shm+mpi")])
def test_arrays_in_gpu_memory(launch, case):
    """Where NCCL is not installed."""
    ranks, becomes = case
    settings = {"RINGREDUCE_NCCL_LIBRARY": "/nowhere", "RINGREDUCE_EMULATED_BLOCKS": "16"}
    good(launch(ranks, "gpus", becomes=becomes, **settings), "gpus")
    good(launch(ranks, "gpus_with_one_thread", becomes=becomes, **settings), "gpus_with_one_thread")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "becomes"), [(3, "mpi"), ("001", "shm+mpi")])
def test_a_long_wait_sleeps(launch, ranks, becomes):
    good(launch(ranks, "idle", becomes=becomes), "idle")


@pytest.mark.slow
def test_a_gigabyte(launch):
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < GIANT:
        pytest.skip("there is too little memory")
    good(launch(2, "giant"), "giant")


def test_a_killed_rank_ends_the_job(launch):
    start = time.monotonic()
    assert launch(3, "death").code != 0
    assert time.monotonic() - start < 20


@pytest.fixture
def survivors(mpi, launch, tmp_path):
    """Has rank 1 die where the launcher lets the others live; what these say, once they have ended."""
    # MPICH's launcher kills the others' process groups now and then, though it is told not to.
    through = {"openmpi": [], "mpich": ["setsid", "--wait"]}[mpi.vendor]

    def run(ranks, **variables):
        options = STAY[mpi.vendor]
        ended = launch(ranks, "death", options=options, through=through, FOLDER=str(tmp_path), **variables)
        files = [tmp_path / str(rank) for rank in range(len(ranks)) if rank != 1]
        until = time.monotonic() + 20
        while time.monotonic() < until and (not all(map(Path.exists, files)) or living()):
            time.sleep(0.05)
        missing = [file.name for file in files if not file.exists()]
        assert not missing, f"ranks {missing} say nothing; the launcher said: {ended.said} {ended.errors}"
        assert not living(), f"not all have ended, but {living()}"
        return {file.read_text().split(" ", 1)[1] for file in files}

    def living():
        processes = [file.read_text().split(" ", 1)[0] for file in tmp_path.iterdir() if not file.suffix]
        return [int(process) for process in processes if Path("/proc", process).exists()]

    yield run
    for process in living():
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("ranks", "becomes", "then"),
    [
        ("0011", "shm+mpi", "3 go on over shm+mpi"),
        *slow_rows(("012", "mpi", "2 go on over mpi"), ("001", "shm+mpi", "2 go on over mpi")),
    ],
)
def test_the_others_go_on_where_the_launcher_lets_them(survivors, ranks, becomes, then):
    assert survivors(ranks, becomes=becomes, SHRINKS="1") == {f"rank 1 died; {then}"}


@pytest.mark.parametrize(("ranks", "becomes"), [("012", "mpi"), *slow_rows(("0011", "shm+mpi"))])
def test_none_waits_for_the_dead_at_the_end(survivors, ranks, becomes):
    assert survivors(ranks, becomes=becomes) == {"rank 1 died"}


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


@pytest.mark.parametrize("transport", ["mpi", "shm+mpi"])
def test_it_needs_an_mpi(transport):
    code = f"import ringreduce; ringreduce.init(transport={transport!r})"
    variables = {"MPICC": "no-such-mpicc"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "there is no no-such-mpicc: an MPI library is needed" in run.stderr, run.stderr


@pytest.mark.slow
def test_the_benchmark_says_that_it_lacks_mpi4py(mpi):
    script = (
        "import sys; sys.modules['mpi4py'] = None; from ringreduce import cli; "
        "sys.exit(cli.main(['bench', '-c', 'broadcast', '--sizes', '4', '--budget', '0.01', '--transport', 'shm']))"
    )
    ended = mpi.run(2, sys.executable, "-c", script, PYTHONPATH=str(ROOT))
    assert ended.code == 0, ended.said + ended.errors
    assert ended.errors.count("ringreduce: MPI's own functions are not timed, because mpi4py is missing") == 1
