"""Starts ranks that use libfabric, the system's or one that pretends something."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import ringreduce

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("programs")
HEADERS = Path("/usr/include/rdma/fabric.h")

needs_headers = pytest.mark.skipif(not HEADERS.exists(), reason="libfabric's headers are not installed")

FAILING = """
import sys
import numpy as np
import ringreduce
try:
    with ringreduce.init(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], transport="ofi", timeout=20) as comm:
        print(comm.transport, comm.all_reduce(np.ones(1))[0])
except (ringreduce.Error, ValueError) as error:
    print(error)
"""

SCENARIO = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import ringreduce
from rank import collectives
with ringreduce.init(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], transport="ofi", timeout=60) as comm:
    print(collectives(comm))
"""


def over(transport: str, function: Callable[..., Any], ranks: int, *args: Any, **options: Any) -> list[Any]:
    """What the function returns on so many ranks."""
    return ringreduce.run(function, ranks, *args, transport=transport, timeout=60, **options)


def begin(*variables: Mapping[str, str], program: str = FAILING) -> list[subprocess.Popen[str]]:
    """Starts a rank with each of these variables; the program gets its rank, their number and the place to meet."""
    place = secrets.token_hex(8)
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(len(variables)), place],
            env={**os.environ, "PYTHONPATH": str(ROOT), **own},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, own in enumerate(variables)
    ]  # fmt: skip


def printed(*variables: Mapping[str, str], program: str = FAILING) -> list[tuple[str, str]]:
    """What each of so many ranks writes to stdout and to stderr, with these variables."""
    ranks = begin(*variables, program=program)
    return [process.communicate(timeout=200) for process in ranks]


def said(*variables: Mapping[str, str], program: str = FAILING) -> list[str]:
    """The same of stdout alone."""
    return [out.strip() for out, _ in printed(*variables, program=program)]


class Shim:
    """A libfabric that pretends something (programs/libfabric_shim.c)."""

    def __init__(self, folder: Path) -> None:
        source, library = PROGRAMS / "libfabric_shim.c", folder / "libfabric.so.1"
        compiler = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror"]
        subprocess.run([*compiler, source, "-o", library, "-ldl"], check=True)
        self._variables = {"LD_LIBRARY_PATH": str(folder), "SHIM_REAL": _path_of_libfabric()}

    def __call__(self, what: str, **more: str) -> dict[str, str]:
        """Variables with which a process finds it."""
        return {**self._variables, "SHIM": what, **more}


def _path_of_libfabric() -> str:
    # In a process of its own, because it replaces signal handlers.
    program = (
        "import ctypes; ctypes.CDLL('libfabric.so.1'); "
        "print(next(line.split()[-1] for line in open('/proc/self/maps') if '/libfabric.so' in line))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()
