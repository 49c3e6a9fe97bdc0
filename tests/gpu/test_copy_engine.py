"""Copies between registered arrays take no thread block, where max_blocks=0 asks for that."""

from __future__ import annotations

import pytest

import ringreduce
from tests.conftest import slow_rows, slowly

from . import programs_of_copies as programs
from .gpu_arrays import library, on_gpu
from .limits import MOST_PROCESSES
from .programs import goes_well
from .ranks import ON_EITHER

pytestmark = [ON_EITHER, pytest.mark.usefixtures("few_blocks")]
WELL = ("collectives", "broadcasts", "others", "captured", "beside", "late")
FAILING = ("misplaced", "different", "unregistered", "absent")


def run_in_threads(what, world, **how):
    timeout = {"timeout": 1.5} if what == "absent" else {}
    on_gpu(getattr(programs, what), world, max_blocks=0, **timeout, **how)


@pytest.mark.parametrize("what", [*WELL, *FAILING])
@pytest.mark.parametrize("world", [*slowly(2), 3])
def test_threads(what, world):
    run_in_threads(what, world)


@pytest.mark.parametrize("world", [4, *slowly(1, 8)])
def test_other_numbers_of_threads(world):
    run_in_threads("collectives", world)
    run_in_threads("broadcasts", world)


def test_threads_with_a_gpu_each():
    if library().count_devices() < 2:
        pytest.skip("there is one GPU")
    on_gpu(programs.on_a_device, 3, "broadcasts", device=[0, 1, 0], max_blocks=0)


@pytest.mark.parametrize(
    ("what", "world"),
    [
        *((what, MOST_PROCESSES) for what in ("collectives", *FAILING)),
        *slow_rows(*((what, MOST_PROCESSES) for what in WELL if what != "collectives")),
        pytest.param("killed", MOST_PROCESSES, marks=pytest.mark.kills),
    ],
)
def test_processes(what, world):
    goes_well("-m", "tests.gpu.programs_of_copies", what, world, RINGREDUCE_EMULATED_BLOCKS="64")


def test_one_rank_that_asks_is_enough():
    """As the smallest max_blocks counts."""

    def work(comm):
        with comm.split(0, max_blocks=0 if comm.rank == 1 else None) as part, part.split(0) as same:
            programs.broadcasts(part)
            programs.broadcasts(same)
        with pytest.raises(AssertionError):
            programs.broadcasts(comm)

    on_gpu(work, 2)


def test_the_argument_is_checked():
    with pytest.raises(ValueError, match="max_blocks must be None or an integer from 0 to 64, not -1"):
        ringreduce.local_group(2, max_blocks=-1)
