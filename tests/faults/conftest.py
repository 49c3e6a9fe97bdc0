import sys
from pathlib import Path

import pytest

from tests.conftest import needs_libfabric, slowly

sys.path.insert(0, str(Path(__file__).parent))

OVER_OFI = pytest.param("ofi", marks=[needs_libfabric, pytest.mark.slow])
OVER_BOTH = (
    "test_death",
    "test_endings",
    "test_mismatch",
    "test_point_to_point",
    "test_shrink",
    "test_waits",
)


def over_one_of_both(metafunc):
    """Runs tests of a module over shared memory and sockets by turns. Slow tests cover the other transports."""
    tests = [name for name in vars(metafunc.module) if name.startswith("test_")]
    over_sockets = tests.index(metafunc.function.__name__) % 2
    quick, other = ("tcp", "shm") if over_sockets else ("shm", "tcp")
    metafunc.parametrize("transport", [quick, *slowly(other), OVER_OFI], indirect=True)


@pytest.fixture(autouse=True)
def transport(request, monkeypatch):
    """Of the communicators that ranks make. Every test has it: what is only added to its fixtures is not set up."""
    if hasattr(request, "param"):
        monkeypatch.setenv("RINGREDUCE_TRANSPORT", request.param)


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] in OVER_BOTH:
        metafunc.parametrize("transport", ["shm", "tcp", OVER_OFI], indirect=True)
