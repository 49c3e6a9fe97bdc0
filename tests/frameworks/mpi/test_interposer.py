"""MPI programs with the interposer loaded: every result is right, and the calls that are ours are served."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringreduce.frameworks import mpi as interposer
from tests.conftest import slowly
from tests.frameworks.mpi.conftest import PROGRAMS, ROOT, STAY

SUITE = ("suite.c", "forms.c", "reductions.c", "moves.c", "blocks.c", "communicators.c", "progress.c")
BLOCKING = [
    "MPI_Allreduce",
    "MPI_Reduce",
    "MPI_Scan",
    "MPI_Exscan",
    "MPI_Reduce_scatter",
    "MPI_Reduce_scatter_block",
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Bcast",
    "MPI_Gather",
    "MPI_Gatherv",
    "MPI_Scatter",
    "MPI_Scatterv",
    "MPI_Alltoall",
    "MPI_Alltoallv",
]
NONBLOCKING = ["MPI_I" + name[4:].lower() for name in BLOCKING]


@pytest.fixture(scope="session")
def preload(mpi, cache) -> Path:
    return built_for(mpi, cache)


def built_for(mpi, cache) -> Path:
    before = os.environ.get("RINGREDUCE_CACHE")
    os.environ["RINGREDUCE_CACHE"] = str(cache)
    try:
        return interposer.path(str(mpi.mpicc))
    finally:
        if before is None:
            del os.environ["RINGREDUCE_CACHE"]
        else:
            os.environ["RINGREDUCE_CACHE"] = before


def good(ended):
    assert ended.code == 0, ended.said + ended.errors
    return ended


@pytest.mark.slow
def test_the_programs_are_right_without_it(mpi):
    good(mpi.run(2, mpi.compile(*SUITE), 0, 0))


@pytest.mark.parametrize("ranks", [3, *slowly(4, 5, 2)])
def test_every_function(mpi, preload, ranks):
    threads = ranks % 2 == 0
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "all"}
    ended = good(mpi.run(ranks, mpi.compile(*SUITE), int(threads), 1, preload=preload, **variables))
    for rank in range(ranks):
        counts = ended.counts(rank)
        large = mpi.vendor == "mpich"
        for name in [*BLOCKING, *(f"{name}_c" for name in BLOCKING if large), "MPI_Barrier"]:
            assert counts[name][0] > counts[name][1], name
        for name in [*NONBLOCKING, *(f"{name}_c" for name in NONBLOCKING if large), "MPI_Ibarrier"]:
            assert (counts[name][0] > 0) == threads, name


REDUCING = BLOCKING[:6]


@pytest.mark.parametrize("ranks", [2, 3, *slowly(4)])
def test_ops_of_the_program(mpi, preload, ranks):
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "all"}
    program = mpi.compile("operators.c", "forms.c", libraries=["-lm"])
    ended = good(mpi.run(ranks, program, preload=preload, **variables))
    for rank in range(ranks):
        counts = ended.counts(rank)
        for name in [*REDUCING, *(f"{name}_c" for name in REDUCING if mpi.vendor == "mpich")]:
            assert counts[name][0] > 0, (name, counts)
            assert counts[name][1] <= 2, (name, counts)  # the first call, and a datatype of the program's
        for name in REDUCING:
            assert counts["MPI_I" + name[4:].lower()][0] == 0, "an op may be freed before such a call ends"


@pytest.mark.parametrize("algorithm", ["", *slowly("ring")])
def test_ops_of_programs_that_differ_between_ranks(mpi, preload, algorithm):
    names = ("operators.c", "other_operators.c")
    one, other = (mpi.compile(name, "forms.c", libraries=["-lm"]) for name in names)
    own = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}[mpi.vendor]
    words = f"[ ${own} = 1 ] && exec {other} 3; exec {one}"
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "1"}
    variables |= {"RINGREDUCE_ALGORITHM": algorithm} if algorithm else {}
    ended = good(mpi.run(3, "sh", "-c", words, preload=preload, **variables))
    assert (ended.counts()["MPI_Allreduce"][0] > 0) == (not algorithm)


@pytest.mark.parametrize("how", ["function", "commutes", "predefined", "fails"])
def test_ranks_whose_ops_differ(mpi, preload, tmp_path, how):
    said = tmp_path / "said"
    mpi.run(
        3,
        mpi.compile("disagreeing.c", libraries=["-rdynamic"]),
        how,
        said,
        preload=preload,
        options=STAY[mpi.vendor],
        RINGREDUCE_MPI="all",
    )
    lines = sorted(said.read_text().splitlines())
    assert len(lines) == 3
    for rank, line in enumerate(lines):
        if how == "function":  # as with the library: nobody finds it, and every call ends
            assert line == f"rank {rank}: nothing"
        elif how == "fails":
            assert line.startswith(f"rank {rank}: ringreduce: the program's op failed on rank 1 in "), line
            assert re.search(r": MPI_Reduce_local: .*MPI_(ERR_)?OP", line, re.IGNORECASE), line
        else:
            assert line.startswith(f"rank {rank}: ringreduce: "), line
            assert "user-defined" in line, line


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi4py(mpi, preload, ranks):
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "1"}
    ended = good(mpi.run(ranks, mpi.python, PROGRAMS / "arrays.py", preload=preload, **variables))
    ending = "_c" if mpi.vendor == "mpich" else ""
    counts = ended.counts()
    for name in [*BLOCKING, "MPI_Iallreduce"]:
        assert counts[name + ending][0] > 0, (name, counts)
    assert counts["MPI_Barrier"][0] > 0


def test_a_communicator_must_be_worth_a_group(mpi, preload):
    ended = good(mpi.run(2, mpi.compile("calls.c"), 100, preload=preload, RINGREDUCE_MPI_COUNT="1"))
    assert ended.counts() == {"MPI_Allreduce": (68, 32)}
    assert ended.counts(1) == {}  # rank 0 speaks for all


OTHERWISE = {
    "not loaded": "unset LD_PRELOAD",
    "off": "export RINGREDUCE_MPI=off",
    "all": "export RINGREDUCE_MPI=all",
}


@pytest.mark.parametrize("rank", [2, *slowly(0)])
@pytest.mark.parametrize("how", OTHERWISE)
def test_a_rank_that_differs_leaves_all_to_mpi(mpi, preload, rank, how):
    own = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}[mpi.vendor]
    words = f"[ ${own} = {rank} ] && {OTHERWISE[how]}; exec {mpi.compile('calls.c')} 100"
    ended = good(mpi.run(3, "sh", "-c", words, preload=preload, RINGREDUCE_MPI_COUNT="all"))
    first = 1 if rank == 0 else 0
    for of in {0, 1, 2} - {rank}:
        assert ended.counts(of) == {"MPI_Allreduce": (0, 100)}
    said = f"ringreduce: rank {rank} of MPI_COMM_WORLD has not loaded libringreduce_mpi.so, or has another value of"
    assert ended.errors.count(f"{said} RINGREDUCE_MPI than rank {first}: collectives are left to MPI") == 1


def test_a_world_that_is_spawned_has_groups_of_its_own(mpi, preload):
    if mpi.vendor != "mpich":
        pytest.skip("Open MPI 5.0 does not survive its own MPI_Comm_spawn here")
    # Its mpirun cannot spawn what it is to bind.
    ended = good(mpi.run(2, mpi.compile("spawn.c"), preload=preload, bound=False, RINGREDUCE_MPI_COUNT="all"))
    assert ended.errors.count("MPI_Allreduce: 18 served, 82 handed on") == 4, ended.errors


def test_built_for_another_mpi(mpi, other_mpi, cache):
    preload = built_for(other_mpi, cache)
    ended = mpi.run(2, mpi.compile("calls.c"), 100, preload=preload)
    assert ended.code != 0
    theirs, own = (next((one.home / "lib").glob("libmpi.so.*")) for one in (other_mpi, mpi))
    said = f"libringreduce_mpi.so is built for the MPI in {theirs}, but the program uses the one in {own}"
    assert said in ended.errors
    assert "signal" not in ended.errors.lower()


def test_switched_off(mpi, preload):
    variables = {"RINGREDUCE_MPI": "off", "RINGREDUCE_MPI_COUNT": "1"}
    ended = good(mpi.run(2, mpi.compile("calls.c"), 100, preload=preload, **variables))
    assert ended.counts() == {"MPI_Allreduce": (0, 100)}


def test_a_wrong_setting_switches_it_off(mpi, preload):
    variables = {"RINGREDUCE_MPI": "yes please", "RINGREDUCE_MPI_COUNT": "1"}
    ended = good(mpi.run(2, mpi.compile("calls.c"), 3, preload=preload, **variables))
    assert ended.counts() == {"MPI_Allreduce": (0, 3)}
    assert "RINGREDUCE_MPI must be auto, all or off, not 'yes please'" in ended.errors


def test_a_killed_rank_is_an_error_on_the_others(mpi, preload, tmp_path):
    # The launcher sees a shell that goes on for a while: else it may end the others before they have said a word.
    words = f"{mpi.compile('calls.c')} 50 1 {tmp_path / 'said'}; sleep 2"
    start = time.monotonic()
    mpi.run(3, "sh", "-c", words, preload=preload, options=STAY[mpi.vendor], RINGREDUCE_MPI="all")
    assert time.monotonic() - start < 20
    said = sorted((tmp_path / "said").read_text().splitlines())
    assert [line.split(",")[0] for line in said] == [
        f"rank {rank}: ringreduce: rank 1 died" for rank in (0, 2)
    ]


@pytest.mark.parametrize("rank", [0, 2])
def test_memory_that_one_rank_lacks_leaves_all_to_mpi(mpi, preload, rank):
    program = mpi.compile("memory.c", libraries=["-rdynamic"])
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "all"}
    ended = good(mpi.run(3, program, rank, preload=preload, **variables))
    for of in range(3):
        assert ended.counts(of) == {"MPI_Allreduce": (0, 3), "MPI_Bcast": (0, 3)}
    assert ended.errors.count("collectives are left to MPI") == 1


@pytest.mark.parametrize("mode", ["all", "off"])
def test_large_memory_of_mpi_is_shared(mpi, preload, mode):
    program = mpi.compile("allocated.c")
    good(mpi.run(2, program, int(mode == "all"), preload=preload, RINGREDUCE_MPI=mode))


def test_an_instruction_set_that_is_not_there_leaves_all_to_mpi(mpi, preload):
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "1", "RINGREDUCE_ISA": "cray1"}
    ended = good(mpi.run(2, mpi.compile("calls.c"), 3, preload=preload, **variables))
    assert ended.counts() == {"MPI_Allreduce": (0, 3)}
    assert "ringreduce: RINGREDUCE_ISA=cray1: this machine has" in ended.errors


def test_a_communicator_may_be_freed_while_its_calls_end(mpi, preload):
    program = mpi.compile("ending.c", libraries=["-rdynamic", "-ldl"])
    ended = good(mpi.run(2, program, preload=preload, RINGREDUCE_MPI="all", RINGREDUCE_MPI_COUNT="1"))
    assert ended.counts()["MPI_Iallreduce"] == (5, 0)


def test_calls_of_fortran(mpi, preload):
    if mpi.vendor != "openmpi":
        pytest.skip("MPICH's Fortran bindings call the functions for C")
    # Open MPI's Fortran part, which would have these functions, need not be there.
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "1"}
    ended = good(mpi.run(3, mpi.compile("fortran.c", libraries=[preload]), preload=preload, **variables))
    counts = ended.counts()
    assert counts["MPI_Allreduce"] == (2, 1)
    for name in [*BLOCKING, "MPI_Barrier", "MPI_Iallreduce"]:
        assert counts[name][0] > 0, name


def test_barriers_of_fortran_and_of_c_at_once(mpi, preload):
    if mpi.vendor != "mpich":
        pytest.skip("the functions are those of MPICH's module mpi_f08")
    # MPICH's Fortran part, whose functions of these names call PMPI_Barrier and PMPI_Ibarrier, need not be there.
    variables = {"RINGREDUCE_MPI": "all", "RINGREDUCE_MPI_COUNT": "1"}
    ended = good(mpi.run(3, mpi.compile("fortran_2008.c", libraries=[preload]), preload=preload, **variables))
    assert ended.counts() == {"MPI_Barrier": (99, 1), "MPI_Ibarrier": (10, 0)}


def command_line(*words, **variables):
    return subprocess.run(
        [sys.executable, "-m", "ringreduce", *words],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_command_prints_the_path(mpi, preload, cache):
    run = command_line("mpi-preload", "--mpicc", str(mpi.mpicc), RINGREDUCE_CACHE=str(cache))
    assert (run.stdout, run.stderr) == (f"{preload}\n", "")
    run = command_line("mpi-preload", MPICC=str(mpi.mpicc), RINGREDUCE_CACHE=str(cache))
    assert run.stdout == f"{preload}\n"


def test_the_command_says_what_is_missing(tmp_path):
    run = command_line("mpi-preload", "--mpicc", "no-such-mpicc")
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("ringreduce: there is no no-such-mpicc: an MPI library is needed")
    broken = tmp_path / "mpicc"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    broken.chmod(0o755)
    run = command_line("mpi-preload", "--mpicc", str(broken))
    assert run.returncode == 1
    assert run.stderr == f"ringreduce: {broken} -show exited with status 3: out of order\n"
