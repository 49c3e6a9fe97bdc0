"""Runs the C program of tests/gpu/nccl_program that `make card-kit` has built, and that prints what it checks.

python3 bench/gpu/nccl_program.py KIT RANKS RANKS_OF_A_PROCESS [COMMAND TO RUN IT UNDER...]
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from record import LEFT_OUT

SECONDS = "8"  # that a call may take


def main() -> None:
    folder, ranks, each, *under = sys.argv[1:]
    if under and not shutil.which(under[0]):
        print(f"there is no {under[0]}")
        sys.exit(LEFT_OUT)
    kit = Path(folder).resolve()
    os.environ["LD_PRELOAD"] = str(kit / "libringreduce_nccl.so")
    command = [*under, str(kit / "program"), ranks, each, SECONDS]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
