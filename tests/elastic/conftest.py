import sys
from pathlib import Path

from tests.faults.conftest import transport

__all__ = ["transport"]

OVER_NONE = ("test_launchers", "test_partition")  # they choose themselves

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # has hosts.py


def pytest_generate_tests(metafunc):
    if "transport" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] not in OVER_NONE:
        metafunc.parametrize("transport", ["shm", "tcp"], indirect=True)
