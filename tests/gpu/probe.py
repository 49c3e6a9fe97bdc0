"""Whether there is a GPU. Another process asks: this one may fork ranks later, and CUDA does not survive that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASK = "from ringreduce.cuda import cuda_library; print(cuda_library.why_not())"


def _ask() -> str:
    asked = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return asked.stdout.strip() if asked.returncode == 0 else asked.stderr.strip()


WHY_NOT = _ask()  # why the GPU cannot be used, or nothing
HAS_CARD = not WHY_NOT
