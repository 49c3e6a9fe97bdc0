"""What one rank of one test does: torch's own _run(), and how it ended in files that the server reads."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from .cases import Cases

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when the one that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def output(folder: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return folder / f"rank-{rank}.out"


def error(folder: Path, rank: int) -> Path:
    """Where a rank's exception goes."""
    return folder / f"rank-{rank}.error"


def make_folders(folder: Path) -> None:
    """What torch's tests expect to find, as their setUp() would have made it."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()


def _redirect(folder: Path, rank: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    out = os.open(output(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, nothing), (1, out), (2, out)):
        os.dup2(source, descriptor)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def run(cases: Cases, test: str, rank: int, folder: Path) -> int:
    """Runs a test as one of its ranks. Returns the exit code; the caller ends the process the ordinary way."""
    die_with_parent()
    _redirect(folder, rank)
    init_method = f"file://{folder}/init_dir/shared_init_file"
    os.environ.update(TEMP_DIR=str(folder), INIT_METHOD=init_method, TMPDIR=str(folder))
    tempfile.tempdir = None  # forget what it found before
    cls = cases.prepare(test, init_method)
    ours, theirs = multiprocessing.Pipe()
    try:
        cls._run(rank, cases.find(test)[1], str(folder / "store"), theirs)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code == cases.error_code and ours.poll():
            error(folder, rank).write_text(ours.recv(), encoding="utf-8")
        return code
    except BaseException:
        error(folder, rank).write_text(traceback.format_exc(), encoding="utf-8")
        return 1
    return 0


def main() -> int:
    """A rank of its own interpreter (`--start spawn`): `python -m tests.frameworks.torch.suite.rank '<JSON>'`."""
    told = json.loads(sys.argv[1])
    cases = Cases(told["backend"], told["world"])
    cases.torch.set_num_threads(1)
    return run(cases, told["test"], told["rank"], Path(told["folder"]))


if __name__ == "__main__":
    sys.exit(main())
