import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

OVER_BOTH = (
    "test_death",
    "test_endings",
    "test_mismatch",
    "test_point_to_point",
    "test_shrink",
    "test_waits",
)


@pytest.fixture
def transport(request, monkeypatch):
    """Of the communicators that ranks make."""
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", request.param)


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] in OVER_BOTH:
        metafunc.fixturenames.append("transport")
        metafunc.parametrize("transport", ["shm", "tcp"], indirect=True)
