"""Ranks that are processes of one host: their GPUs' memory is shared by handles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .gpu_arrays import library
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not HAS_CARD and not EMULATED_LIBRARY.exists(), reason="not built: make emulated"),
]


def _run(what, world, **more):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RINGREDUCE_EMULATED_BLOCKS": "64", **more}
    program = [sys.executable, "-m", "tests.gpu.programs_of_processes", what, str(world)]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=50, env=env)


@pytest.mark.parametrize("what", ["one", "two", "killed"])
@pytest.mark.parametrize("world", [2, 3])
def test_processes(what, world):
    if what == "two" and library().count_devices() < 2:
        pytest.skip("there is one GPU")
    done = _run(what, world)
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr


def test_messages():
    done = _run("messages", 3, RINGREDUCE_EMULATED_BLOCKS="64")
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(HAS_CARD, reason="it is not about the GPU, and takes the memory of 33 contexts")
def test_more_ranks_than_kernels_serve():
    """Where NCCL is not installed."""
    done = _run("many", 33, RINGREDUCE_NCCL_LIBRARY="/nowhere", RINGREDUCE_LOG="info")
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr
    said = (
        "go through the CPU, because kernels serve at most 32 ranks: rank 0: NCCL cannot be loaded: /nowhere"
    )
    assert said in done.stderr


@pytest.mark.skipif(HAS_CARD, reason="only the emulated GPU's memory can be counted")
def test_boxes_wait_for_slow_peers():
    done = _run("slow", 3)
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not HAS_CARD, reason="only a card has several kinds of handles")
@pytest.mark.parametrize("handles", ["ipc", "file", "fabric"])
def test_kinds_of_handles(handles):
    done = _run("one", 2, RINGREDUCE_CUDA_HANDLES=handles)
    # A fabric's also need leave of its manager.
    if "this GPU does not support this kind" in done.stderr or "operation not permitted" in done.stderr:
        pytest.skip(f"not to be had on this machine: {done.stderr.splitlines()[-1]}")
    assert done.stdout.endswith("well\n") and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not HAS_CARD, reason="the emulated GPU has one kind of handles")
def test_other_words_for_handles_are_refused():
    assert (
        "RINGREDUCE_CUDA_HANDLES must be auto, ipc" in _run("one", 2, RINGREDUCE_CUDA_HANDLES="best").stderr
    )
