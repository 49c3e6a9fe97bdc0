"""LightGBM's ranks grow the same trees over ringreduce as over its own sockets."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys

import pytest

from tests.frameworks.installed.programs import ENVIRONMENT, EXAMPLES

if importlib.util.find_spec("lightgbm") is None:
    pytest.skip("lightgbm is not installed", allow_module_level=True)


def trees(ranks: int, *arguments: str) -> tuple[str, float]:
    """What identifies the trees, and the part of the rows that they are wrong about."""
    command = [sys.executable, "-m", "ringreduce", "run", "-n", str(ranks)]
    command += [str(EXAMPLES / "lightgbm_data_parallel.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(rf"{ranks} ranks: 20 trees, (\w+), wrong about (0\.\d+) of the rows\n", done.stdout)
    assert found, done.stdout
    return found[1], float(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_trees_are_those_of_lightgbms_sockets(ranks):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = trees(ranks)
    assert ours == trees(ranks, "--sockets", str(port)) and ours[1] < 0.1
