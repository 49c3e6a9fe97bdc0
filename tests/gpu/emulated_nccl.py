"""The emulated libnccl.so.2, for tests of collectives over NCCL. A card runs those of one rank over its own."""

import ctypes
import os

import pytest

from ringreduce.build import nccl_library

from .gpu_arrays import library
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

EMULATED_NCCL = EMULATED_LIBRARY.with_name("libnccl_emulated.so")
MARKS = [
    pytest.mark.usefixtures("over_nccl"),
    pytest.mark.skipif(
        not HAS_CARD and not (EMULATED_LIBRARY.exists() and EMULATED_NCCL.exists()),
        reason="not built: make emulated",
    ),
]


@pytest.fixture
def over_nccl(request, monkeypatch):
    library()
    monkeypatch.setenv("RINGREDUCE_GPU_TRANSPORT", "nccl")
    if HAS_CARD:
        callspec = getattr(request.node, "callspec", None)
        if callspec is None or callspec.params.get("world") != 1:
            pytest.skip("NCCL wants a GPU for each rank")
        if not _is_installed():
            pytest.skip("there is no libnccl.so.2")
    else:
        monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(EMULATED_NCCL))


def _is_installed():
    try:
        ctypes.CDLL(os.environ.get("RINGREDUCE_NCCL_LIBRARY") or nccl_library.find() or "libnccl.so.2")
    except OSError:
        return False
    return True


@pytest.fixture
def nccl():
    """The library itself, for what only tests ask of it."""
    return ctypes.CDLL(str(EMULATED_NCCL))
