"""Runs an example as a user does, and returns what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# DeepSpeed compiles a module when it is first used. A process that is killed meanwhile leaves a lock behind, for which
# the next one waits, so each run of the tests has a folder of its own.
EXTENSIONS = tempfile.TemporaryDirectory(prefix="torch-extensions-")
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in LAUNCHED},
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONFAULTHANDLER": "1",
    "TORCH_EXTENSIONS_DIR": EXTENSIONS.name,
}


def output(
    example: str, *arguments: str, ranks: int | None = None, limit: float = 500, **variables: str
) -> str:
    """What an example prints, under torchrun if ranks is given. The example must end well."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [sys.executable, *launcher, str(EXAMPLES / example), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | variables
    ) as started:
        try:
            printed, errors = started.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # torchrun ends its ranks. A program alone prints its threads' stacks.
            started.send_signal(signal.SIGTERM if ranks else signal.SIGABRT)
            printed, errors = started.communicate()
    assert started.returncode == 0, printed + errors
    return printed


def run(example: str, *arguments: str, **given: Any) -> dict:
    """The only JSON object that an example prints."""
    lines = output(example, *arguments, **given).splitlines()
    (found,) = (json.loads(line) for line in lines if line.startswith("{"))
    return found
