"""Programs under each mpirun on several hosts, which are namespaces here, with nothing else set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.network.clusters import Mpirun
from bench.network.hosts import Hosts
from tests.conftest import slow_rows, slowly

why_not = Hosts.permitted()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))

# All hosts are on one machine, and could share memory after all.
HOSTS = "import os, platform, sys, time; os.environ['RINGREDUCE_HOST'] = platform.node()\n"
INIT = """
import ringreduce, numpy as np
def meet():
    with ringreduce.init(timeout=30) as comm:
        x = np.full(1000, comm.rank, 'float32')
        comm.all_reduce(x)
        say(comm.rank, comm.size, x[0], comm.hosts, comm.local_rank, comm.local_size)
        return comm.rank
def say(*words):
    sys.stdout.write('; '.join(map(str, words)) + '\\n')
"""
TORCH = """
import torch, torch.distributed as dist
def meet_by_torch():
    dist.init_process_group('ringreduce')
    x = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(x)
    say(dist.get_rank(), dist.get_world_size(), x[0].item())
    dist.destroy_process_group()
"""


class Program:
    """Runs programs under an mpirun."""

    def __init__(self, vendor: str, hosts: Hosts, folder: Path) -> None:
        self._mpirun, self._folder = Mpirun(vendor, hosts, folder), folder
        if why_not := self._mpirun.missing():
            pytest.skip(why_not)

    def python(self) -> str:
        """One that has mpi4py for this MPI."""
        found = self._mpirun.home / "bin" / "python"
        needed = f"import mpi4py, numpy, sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
        if subprocess.run([found, "-c", needed], capture_output=True).returncode:
            pytest.skip(f"{found} lacks mpi4py, or is another version of Python")
        return str(found)

    def run(
        self, ranks: dict[str, int], text: str, *, python: str = sys.executable, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        path = self._folder / "program.py"
        path.write_text(HOSTS + text)
        return self._mpirun.run(ranks, [*before, python, str(path)])


@pytest.fixture(scope="module")
def hosts():
    with Hosts(3, rate=None) as made:
        yield made


@pytest.fixture(params=[*slowly("openmpi"), "mpich", *slowly("impi")])
def mpirun(request, hosts, tmp_path):
    return Program(request.param, hosts, tmp_path)


def said(done, count):
    lines = sorted(line for line in done.stdout.splitlines() if "; " in line)
    assert done.returncode == 0 and len(lines) == count, done.stdout + done.stderr
    return lines


@pytest.mark.parametrize(
    ("ranks", "placed"),
    [
        ({"host1": 1, "host2": 3}, [[0], [1, 2, 3]]),
        *slow_rows(({"host0": 2, "host1": 1, "host2": 3}, [[0, 1], [2], [3, 4, 5]])),
    ],
)
def test_ranks_meet(mpirun, ranks, placed):
    """By init(), as often as they like; and who ends early does not end the others."""
    done = mpirun.run(ranks, INIT + "meet(); rank = meet(); time.sleep(0.2 * rank); say('end', rank)")
    size = sum(ranks.values())
    lines = [
        f"{rank}; {size}; {float(sum(range(size)))}; {placed}; {local}; {len(here)}"
        for here in placed
        for local, rank in enumerate(here)
    ]
    assert said(done, 3 * size) == sorted(2 * lines + [f"end; {rank}" for rank in range(size)])


@pytest.mark.slow
def test_torch_distributed(mpirun):
    pytest.importorskip("torch")
    done = mpirun.run({"host1": 2, "host2": 1}, INIT + TORCH + "meet_by_torch(); meet()")
    assert [line.split("; ")[:3] for line in said(done, 6)] == [
        [str(r), "3", "3.0"] for r in (0, 0, 1, 1, 2, 2)
    ]


@pytest.mark.parametrize("order", ["meet(); meet_by_mpi()", *slowly("meet_by_mpi(); meet(); meet_by_mpi()")])
def test_mpi_in_the_same_process(mpirun, order):
    """MPI_Init and MPI_Finalize find what they need, before and afterwards."""
    by_mpi = "def meet_by_mpi():\n    from mpi4py import MPI\n    say('mpi', MPI.COMM_WORLD.allgather('x'))\n"
    done = mpirun.run({"host1": 1, "host2": 2}, INIT + by_mpi + order, python=mpirun.python())
    lines = said(done, 3 * order.count("meet"))
    assert lines.count("mpi; ['x', 'x', 'x']") == 3 * order.count("mpi")


def test_a_rank_that_does_not_come(mpirun):
    late = """
if os.environ.get('PMIX_RANK', os.environ.get('PMI_RANK')) == '1':
    time.sleep(4)
else:
    try:
        ringreduce.init(timeout=1.5)
    except ringreduce.TimeoutError as error:
        say('late', error)
"""
    done = mpirun.run({"host1": 1, "host2": 1}, INIT + late)
    assert "late; timed out waiting for" in done.stdout, done.stdout + done.stderr


def test_scripts_around_ranks_of_one_host(mpirun):
    done = mpirun.run({"host0": 2}, INIT + "meet()", before=("sh", "-c", '"$@"; true', "script"))
    assert [line.split("; ")[:2] for line in said(done, 2)] == [["0", "2"], ["1", "2"]]
