"""The emulated libnccl.so.2, for tests of collectives over NCCL."""

import ctypes

import pytest

from .gpu_arrays import HAS_CARD, library
from .ranks import EMULATED_LIBRARY

EMULATED_NCCL = EMULATED_LIBRARY.with_name("libnccl_emulated.so")
MARKS = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("over_nccl"),
    pytest.mark.skipif(
        HAS_CARD or not EMULATED_LIBRARY.exists() or not EMULATED_NCCL.exists(),
        reason="on a card, or not built: make emulated",
    ),
]


@pytest.fixture
def over_nccl(monkeypatch):
    library()
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "nccl")


@pytest.fixture
def nccl():
    """The library itself, for what only tests ask of it."""
    return ctypes.CDLL(str(EMULATED_NCCL))
