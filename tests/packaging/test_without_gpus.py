"""A build for CPUs only needs nothing of csrc/gpu, serves arrays of CPUs, and refuses others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installation import ROOT, by_make

PROGRAM = """
import threading
import numpy as np
import ringreduce

class OnGpu:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}

def run(rank):
    ranks[rank].all_reduce(arrays[rank])

ranks = ringreduce.local_group(2)
arrays = [np.full(4, rank + 1.0) for rank in range(2)]
threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(arrays[0].tolist(), ranks[0].device_stream)
for call in (lambda: ranks[0].all_reduce(OnGpu()), lambda: ranks[0].prepare(0)):
    try:
        call()
    except ringreduce.Error as error:
        print(error)
"""


@by_make
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_builds_without_the_folder_and_runs(tmp_path):
    for name, left_out in {"csrc": ["gpu", "nccl"], "ringreduce": ["*.so"]}.items():
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(*left_out))
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    beside = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    build = tmp_path / "build"
    options = {
        "CMAKE_BUILD_TYPE": "Debug",
        "Python_EXECUTABLE": sys.executable,
        "RINGREDUCE_GPU": "OFF",
        "RINGREDUCE_TORCH": "OFF",
    }
    configure = ["cmake", "-G", "Ninja", "-S", tmp_path, "-B", build]
    for words in (
        [*configure, *(f"-D{name}={value}" for name, value in options.items())],
        ["cmake", "--build", build],
        ["cmake", "--install", build, "--prefix", tmp_path, "--component", "engine"],
    ):
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    sums, *refusals = done.stdout.splitlines()
    assert sums == f"{[3.0] * 4} 0"
    assert len(refusals) == 2
    assert all("this build lacks" in refusal and "-DRINGREDUCE_GPU=ON" in refusal for refusal in refusals)
