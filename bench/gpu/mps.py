"""Runs a command under an MPS daemon of its own, whose pipes nobody else uses. It changes no mode of the card.

python3 bench/gpu/mps.py COMMAND...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

from record import LEFT_OUT

CONTROL = "nvidia-cuda-mps-control"


def main() -> int:
    if not shutil.which(CONTROL):
        print(f"there is no {CONTROL}")
        return LEFT_OUT
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        daemon = subprocess.Popen([CONTROL, "-f"], env=environment)  # killed with the step, if need be
        try:
            time.sleep(1)
            return subprocess.run(sys.argv[1:], env=environment).returncode
        finally:
            subprocess.run([CONTROL], input="quit\n", text=True, env=environment, timeout=20)
            daemon.wait(20)


if __name__ == "__main__":
    sys.exit(main())
