"""Ranks that are processes of one host: their GPUs' memory is shared by handles."""

from __future__ import annotations

import pytest

from .gpu_arrays import library
from .limits import MOST_PROCESSES
from .probe import HAS_CARD
from .programs import goes_well, ran
from .ranks import ON_EITHER

pytestmark = ON_EITHER


def _run(what, world, **more):
    blocks = {"RINGREDUCE_EMULATED_BLOCKS": "64"}
    return goes_well("-m", "tests.gpu.programs_of_processes", what, world, **{**blocks, **more})


@pytest.mark.parametrize("what", ["one", "two", pytest.param("killed", marks=pytest.mark.kills)])
def test_processes(what):
    if what == "two" and library().count_devices() < 2:
        pytest.skip("there is one GPU")
    _run(what, MOST_PROCESSES)


def test_messages():
    _run("messages", MOST_PROCESSES, RINGREDUCE_EMULATED_BLOCKS="64")


@pytest.mark.slow
@pytest.mark.skipif(HAS_CARD, reason="it is not about the GPU, and takes the memory of 33 contexts")
def test_more_ranks_than_kernels_serve():
    """Where NCCL is not installed."""
    done = _run("many", 33, RINGREDUCE_NCCL_LIBRARY="/nowhere", RINGREDUCE_LOG="info")
    said = (
        "go through the CPU, because kernels serve at most 32 ranks: rank 0: NCCL cannot be loaded: /nowhere"
    )
    assert said in done.stderr


@pytest.mark.skipif(HAS_CARD, reason="only the emulated GPU's memory can be counted")
def test_boxes_wait_for_slow_peers():
    _run("slow", 3)


def _run_on_card(handles):
    command = "-m", "tests.gpu.programs_of_processes", "one", 2
    return ran(*command, status=None, RINGREDUCE_CUDA_HANDLES=handles)


@pytest.mark.skipif(not HAS_CARD, reason="only a card has several kinds of handles")
@pytest.mark.parametrize("handles", ["ipc", "file", "fabric"])
def test_kinds_of_handles(handles):
    done = _run_on_card(handles)
    # A fabric's also need leave of its manager.
    if "this GPU does not support this kind" in done.stderr or "operation not permitted" in done.stderr:
        pytest.skip(f"not to be had on this machine: {done.stderr.splitlines()[-1]}")
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not HAS_CARD, reason="the emulated GPU has one kind of handles")
def test_other_words_for_handles_are_refused():
    assert "RINGREDUCE_CUDA_HANDLES must be auto, ipc" in _run_on_card("best").stderr
