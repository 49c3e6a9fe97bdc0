"""What CMake puts into a wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "dev"
by_make = pytest.mark.skipif(not BUILT.exists(), reason="not built by make")


def install(prefix: Path) -> Path:
    """Puts it there; returns the package's folder."""
    cmake = Path(sys.executable).parent / "cmake"
    words = [cmake if cmake.exists() else "cmake", "--install", BUILT, "--prefix", prefix]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return prefix / "ringreduce"
