"""The error table: what it prints, and that its errors are those of the dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from bench.engine import accuracy
from tests.processes import python

HALF_A_STEP = {"float16": 2.0**-11, "float8_e5m2": 2.0**-3}  # relative to what is rounded


def test_errors_are_relative_to_the_magnitudes_that_were_added():
    parts = [np.array([1.0, 3.0, 0.0]), np.array([1.0, -1.0, 0.0])]
    assert accuracy.error(np.array([2.0, 2.0, 0.0]), parts) == "0.0e+00, 0.0e+00"
    assert accuracy.error(np.array([2.0, 3.0, 0.0]), parts) == "2.5e-01, 1.4e-01"


@pytest.mark.slow
def test_table():
    options = ["--ranks", 3, "--count", 3000, "--dtypes", ",".join(HALF_A_STEP)]
    done = python("-m", "bench.engine.accuracy", *options, timeout=280)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if "|" in line
    ]
    assert lines[0] == ["dtype", "values", "ranks", "auto", "ring", "reproducible", "Gloo"]
    assert [line[:3] for line in lines[2:]] == [
        [dtype, values, "3"] for dtype in HALF_A_STEP for values in accuracy.DRAWS
    ]
    for dtype, _, _, auto, _, kept, gloo in lines[2:]:
        largest, rms = map(float, kept.split(","))
        # Rounded once: within half a step (as printed, to two digits), and near to it among so many values.
        limit = HALF_A_STEP[dtype]
        assert limit / 3 < largest < 1.05 * limit and rms < largest, (dtype, kept)
        assert float(auto.split(",")[0]) < 4 * largest
        assert gloo == "refused" if dtype == "float8_e5m2" else float(gloo.split(",")[0]) > 0
    assert "Gloo, float8_e5m2: refused: " in out
