"""The peers that are there, and running those that need processes of their own.

Gloo runs in the ranks' own processes, and so does MPI where mpirun started them. Otherwise each MPI is
started with its own mpirun: the one of this interpreter's mpi4py, and those of a checkout's environments
(.venv-mpich and so on, which `make bench-peers` installs).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ringreduce.bench import mpi
from ringreduce.bench.protocol import Effort, Problem

VENDORS = ("openmpi", "mpich", "impi")
TIMED = ("all_reduce", "reduce_scatter", "all_gather")
SCRIPT = Path(__file__).with_name("mpi4py_collectives.py")


@dataclass(frozen=True)
class Mpi:
    """An MPI that can be started: the prefix it is installed in, the Python that has its mpi4py."""

    vendor: str
    home: Path
    python: Path
    mpirun: Path


def gloo_is_there() -> bool:
    return find_spec("torch") is not None


def mpi4py_is_there() -> bool:
    return find_spec("mpi4py") is not None


def installed_mpis() -> list[Mpi]:
    """One per vendor, a checkout's before this interpreter's."""
    found: dict[str, Mpi] = {}
    for root in dict.fromkeys([Path(__file__).resolve().parents[2], Path.cwd()]):
        for vendor in VENDORS:
            home = root / f".venv-{vendor}"
            one = Mpi(vendor, home, home / "bin" / "python", home / "bin" / "mpirun")
            if (home / ".ready").exists() and one.mpirun.exists():
                found.setdefault(vendor, one)
    own = _of_this_interpreter()
    if own is not None:
        found.setdefault(own.vendor, own)
    return list(found.values())


def _of_this_interpreter() -> Mpi | None:
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    named = str(beside) if beside.exists() else shutil.which("mpiexec")
    if named is None or not mpi4py_is_there():
        return None
    # Asked in a process of its own: importing mpi4py starts MPI.
    command = [sys.executable, str(SCRIPT), "--vendor"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Mpi(answer.stdout.strip(), Path(sys.prefix), Path(sys.executable), Path(named))


def run_mpi(
    one: Mpi, ranks: int, problems: list[Problem], effort: Effort
) -> tuple[list[dict[str, Any]], str]:
    """Rows for the problems (of one collective, dtype and op), and what went wrong, if something did."""
    problem = problems[0]
    program = [
        *(str(one.python), str(SCRIPT), "--ranks", str(ranks), "--collective", problem.collective),
        *("--sizes", ",".join(str(each.nbytes) for each in problems), "--library", one.vendor),
        *("--dtype", problem.dtype, "--op", problem.op, "--budget", str(effort.budget)),
        *("--warmup", str(effort.warmup), "--least", str(effort.least)),
        *(("--iterations", str(effort.iterations)) if effort.iterations else ()),
    ]
    command = [*mpi.launcher(one.vendor, one.mpirun, ranks), *program]
    environment = {**os.environ, **mpi.environment(one.vendor, one.home, ranks)}
    timeout = 60 + sum(4 * effort.budget + each.nbytes * ranks / 50e6 for each in problems)
    text, wrong = _run(command, environment, timeout)
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"library"')]
    extra = {"dtype": problem.dtype, "op": problem.op, "in_place": True}
    return [{**row, **extra} for row in rows], wrong


def _run(command: list[str], environment: dict[str, str], timeout: float) -> tuple[str, str]:
    # Files, not pipes: a rank that outlives its mpirun would keep a pipe open, and us waiting for its end.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        wrong = ""
        try:
            code = process.wait(timeout=timeout)
            wrong = f"exit {code}" if code else ""
        except subprocess.TimeoutExpired:
            wrong = f"no end after {timeout:.0f} s"
        finally:
            _stop(process)
        out.seek(0)
        err.seek(0)
        last = err.read().strip().splitlines()[-1:]
        return out.read(), f"{wrong}: {last[0]}" if wrong and last else wrong


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Asked first: an mpirun ends its ranks, which sit in groups of their own; killed, it would leave them.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
