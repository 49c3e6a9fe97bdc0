"""Tests run on a GPU's threads as the CPU emulates them and, where there is one, on a card."""

import pytest

from ringreduce import cuda_library

from .card import Card
from .emulated import LIBRARY, Emulated

MISSING = cuda_library.why_not()


@pytest.fixture(scope="session")
def card():
    return Card()


@pytest.fixture(scope="session")
def emulated():
    if not LIBRARY.exists():
        pytest.skip("not built: make emulated")
    return Emulated()


@pytest.fixture(params=["emulated"] if MISSING else ["emulated", "card"])
def gpu(request):
    return request.getfixturevalue(request.param)
