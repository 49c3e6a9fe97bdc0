"""Runs an example as a user does, and returns what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in LAUNCHED},
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def output(example: str, *arguments: str, ranks: int | None = None, limit: float = 100) -> str:
    """What an example prints, under torchrun if ranks is given. The example must end well."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *launcher, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(example: str, *arguments: str, ranks: int | None = None, limit: float = 100) -> dict:
    """The only JSON object that an example prints."""
    lines = output(example, *arguments, ranks=ranks, limit=limit).splitlines()
    (found,) = (json.loads(line) for line in lines if line.startswith("{"))
    return found
