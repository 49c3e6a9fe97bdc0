"""Runs the C program of tests/gpu/nccl_program that `make card-kit` has built, as one process or as several.

python3 bench/gpu/nccl_program.py KIT WORLD RANKS_OF_A_PROCESS [COMMAND TO RUN IT UNDER...]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import LEFT_OUT

PATIENCE = 2.0  # seconds for the others, once a process has failed


def main() -> int:
    folder, world, each, *under = sys.argv[1:]
    kit = Path(folder).resolve()
    if under and not shutil.which(under[0]):
        print(f"there is no {under[0]}")
        return LEFT_OUT
    environment = {**os.environ, "LD_PRELOAD": str(kit / "libringreduce_nccl.so")}
    with tempfile.TemporaryDirectory() as place:
        running = {
            first: subprocess.Popen(
                [*under, str(kit / "program"), world, str(first), each, f"{place}/id"], env=environment
            )
            for first in range(0, int(world), int(each))
        }
        end = float("inf")
        while any(one.poll() is None for one in running.values()) and time.monotonic() < end:
            if end == float("inf") and any(one.poll() for one in running.values()):
                end = time.monotonic() + PATIENCE
            time.sleep(0.01)
        failed = {first: one.poll() for first, one in running.items() if one.poll() != 0}
        for one in running.values():
            one.kill()
            one.wait()
    for first, status in failed.items():
        if status != 1:  # then it has said why
            print(f"the process from rank {first} on " + (f"ended: {status}" if status else "did not end"))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
