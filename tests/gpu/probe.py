"""Whether there is a GPU. Another process asks: this one may fork ranks later, and CUDA does not survive that.

RINGREDUCE_TEST_CARD has the answer: "yes", or why the GPU cannot be used. A process that finds none asks, and
passes the answer on to all that it starts: each look at a card takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "RINGREDUCE_TEST_CARD"
ASK = "from tests.gpu import cuda_library; print(cuda_library.why_not() or 'yes')"


def _ask() -> str:
    asked = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, timeout=200)
    return asked.stdout.strip() if asked.returncode == 0 else asked.stderr.strip()


ANSWER = os.environ[VARIABLE] = os.environ.get(VARIABLE) or _ask()
HAS_CARD = ANSWER == "yes"
WHY_NOT = "" if HAS_CARD else ANSWER
