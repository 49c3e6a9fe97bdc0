"""`make test-gpu` goes on after a test that hangs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .probe import ROOT

TESTS = """
import time
import pytest

@pytest.mark.timeout(1)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test(n):
    if n in (2, 4):
        time.sleep(60)
    assert n != 5
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_tests_that_hang_do_not_end_the_run(tmp_path):
    files = [tmp_path / f"test_{name}.py" for name in ("one", "two")]
    files[0].write_text(TESTS)
    files[1].write_text("def test(): pass")
    command = [
        *("make", "--old-file=gpu", "test-gpu", f"GPU_PYTHON={sys.executable}"),
        *(f"GPU_TESTS={files[0]} {files[1]}", f"GPU_FLAGS=--timeout-method=thread --rootdir={tmp_path} -rf"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert sorted(re.findall(r"^FAILED .*test\[(\d)\]", done.stdout, re.MULTILINE)) == ["2", "4", "5"], (
        done.stdout
    )
    assert "3 failed, 3 passed" in done.stdout and " 1 passed" in done.stdout, done.stdout
