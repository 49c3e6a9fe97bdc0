"""Every command of docs/running.md, run as it stands there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import page
import pytest
from worlds import OWN, ROOT, environment, on_one_host, two_hosts

from bench.network.hosts import Hosts
from ringreduce.bench.mpi import environment as of_mpi
from tests.conftest import slowly

why_not = Hosts.permitted()
namespaces = pytest.mark.skipif(why_not is not None, reason=str(why_not))

tested = {"file", "under slurm"}  # the latter in tests/start/slurm/test_commands_of_the_page.py


def is_slow(block):
    """torchrun imports torch for itself and for each rank; on one host it is run anyway."""
    return block.where != "on one host" and "torchrun" in block.text


def in_world(where):
    """Runs a test for each of the blocks of a world."""
    tested.add(where)
    blocks = [block for block in page.SHELL if block.where == where]
    assert blocks, f"no command of docs/running.md is {where} any more"
    names = [f"line-{page.TEXT.count(chr(10), 0, page.TEXT.index(block.text)) + 1}" for block in blocks]
    cases = [
        pytest.param(block, marks=[pytest.mark.slow] * is_slow(block), id=name)
        for block, name in zip(blocks, names, strict=True)
    ]
    return pytest.mark.parametrize("block", cases)


@pytest.fixture
def folder(tmp_path):
    return page.write_files(tmp_path)


@pytest.fixture(scope="module")
def hosts():
    with two_hosts() as made:
        yield made


@in_world("on one host")
def test_on_one_host(block, folder):
    block.check(on_one_host(block.text, folder))


@namespaces
@in_world("on two hosts")
def test_on_two_hosts(block, folder, hosts):
    block.check(hosts.run(block.by_host(), folder))


@namespaces
@in_world("in containers")
def test_in_containers(block, folder):
    block.check(on_one_host(block.text, folder))


@namespaces
@in_world("in containers on two hosts")
def test_in_containers_on_two_hosts(block, folder, hosts):
    block.check(hosts.run(block.by_host(), folder))


STUCK = """
import os, pathlib, time
import numpy as np, ringreduce
with ringreduce.init(timeout=30) as comm:
    if comm.rank == 0:
        time.sleep(20)
    pathlib.Path("waiting").touch()
    comm.all_reduce(np.ones(3))
"""
BESIDE = """
ringreduce run -n 2 train.py 2> ended &
until [ -e waiting ]; do sleep 0.05; done
sleep 0.3
"""


@namespaces
@pytest.mark.skipif(not shutil.which("py-spy", path=environment()["PATH"]), reason="py-spy is missing")
@in_world("beside a rank that hangs")
def test_beside_a_rank_that_hangs(block, folder):
    (folder / "train.py").write_text(STUCK)
    said = on_one_host(" ".join([*OWN, "sh", "-ec"]) + f" '{BESIDE}{block.text}'", folder)
    assert block.outcome in said


def mpi(vendor):
    """The environment of an MPI library that `make test` sets up."""
    home = ROOT / f".venv-{vendor}"
    if not (home / "bin" / "mpirun").exists():
        pytest.skip(f"there is no {home}; `make test` sets it up")
    return environment(home / "bin", **of_mpi(vendor, home, 4))


@pytest.mark.parametrize("vendor", [*slowly("openmpi"), "mpich"])
@in_world("under openmpi, mpich")
def test_under_mpi(block, vendor, folder):
    block.check(on_one_host(block.text, folder, mpi(vendor)))


@pytest.mark.slow
@namespaces
@in_world("under openmpi on two hosts")
def test_under_open_mpi_on_two_hosts(block, folder, hosts):
    block.check(hosts.run(block.by_host(), folder, mpi("openmpi")))


@namespaces
@in_world("under mpich on two hosts")
def test_under_mpich_on_two_hosts(block, folder, hosts):
    block.check(hosts.run(block.by_host(), folder, mpi("mpich")))


def test_no_command_is_left_out():
    assert {block.where for block in page.SHELL} <= tested
    assert set(page.OTHERS) <= {"python"}, (
        "shell commands say where they run: ```sh on one host: 4 ranks, shm"
    )
    assert not re.search(r"^ {4}\S", page.FENCED.sub("", page.TEXT), re.MULTILINE), "commands have fences"
    assert "page.SHELL" in (Path(ROOT) / "tests/start/slurm/test_commands_of_the_page.py").read_text()
