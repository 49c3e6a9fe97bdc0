"""How far two ranks' cores are from each other is measured in passing, by the one that waits for the other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import ringreduce

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).parent / "programs" / "late_rank.cpp"
LIBRARY = Path(ringreduce.__file__).parent / "libringreduce.so"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_the_late_rank_takes_over_what_the_other_has_measured(tmp_path):
    program = tmp_path / "late_rank"
    options = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'csrc'}"]
    compiler = os.environ.get("CXX", "c++")
    linked = [LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}"]
    subprocess.run([compiler, *options, PROGRAM, *linked, "-o", program], check=True)
    ended = subprocess.run([program], check=True, capture_output=True, text=True)
    measured, heard = map(int, ended.stdout.split())
    assert measured > 0
    assert abs(heard - measured) <= 4, "the last exchange may have changed it by a step"
