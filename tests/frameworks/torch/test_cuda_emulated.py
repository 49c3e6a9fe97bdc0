"""CUDA tensors under torch.distributed, on the emulated GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "build" / "tests" / "emulated_cuda.so"


@pytest.mark.slow
@pytest.mark.timeout(310)
@pytest.mark.skipif(not MODULE.exists(), reason="not built: make emulated")
@pytest.mark.parametrize("suite", ["suite", "training"])
def test_suite(suite):
    """In a process of its own: its ranks are forked, and nothing of a GPU that was used before survives that."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/frameworks/torch/emulated_cuda/{suite}.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(310)
@pytest.mark.skipif(not MODULE.exists(), reason="not built: make emulated")
def test_the_page_says_what_is_served():
    """After a change: python -m tests.frameworks.torch.emulated_cuda.served --write."""
    command = [sys.executable, "-m", "tests.frameworks.torch.emulated_cuda.served", "--compare"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(310)
@pytest.mark.skipif(not MODULE.exists(), reason="not built: make emulated")
def test_training_gives_the_bits_of_the_cpu(tmp_path):
    program = "from tests.frameworks.torch.emulated_cuda import before_torch, trained; trained.train({!r})"
    command = [sys.executable, "-c", program.format(str(tmp_path / "store"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "DataParallel", "ShardedOptimizer 1", "ShardedOptimizer 2", "DDP", "DDP, hook",
    ]  # fmt: skip
