"""Starts one command per rank, each with --folder and the same new folder. Ends all if one fails.

start_ranks.py '[["command", "of", "rank", "0"], ["command", "of", "rank", "1"]]'
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time

POLL = 0.02


def run(commands: list[list[str]]) -> int:
    """Runs the commands, and returns the exit status of the first rank that failed, or 0."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([*command, "--folder", folder]) for command in commands]
        try:
            while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
                time.sleep(POLL)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return next((abs(rank.returncode) for rank in ranks if rank.returncode not in (0, -signal.SIGKILL)), 0)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also removes the folder and ends the ranks
    raise SystemExit(run(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
