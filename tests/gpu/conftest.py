"""Tests run on a GPU's threads as the CPU emulates them and, where there is one, on a card."""

import os

import pytest

from . import cuda_library
from .card import Card
from .emulated import LIBRARY, Emulated
from .emulated_nccl import nccl, over_nccl  # noqa: F401 (fixtures)
from .gpu_arrays import nothing_stays_open
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY, DoesNotFit, Ranks, emulated_library

# For ranks that are threads, as local_group() sets them; read when a card is first used.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
EITHER = ["emulated", "card"] if HAS_CARD else ["emulated"]


@pytest.fixture
def few_blocks(monkeypatch):
    """Each block of the emulated GPU is a thread: two of them for each rank."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "64")


@pytest.fixture(autouse=True, scope="module")
def other_tests_have_no_emulated_gpu():
    """The programs that they start would otherwise load it."""
    before = os.environ.get("RINGREDUCE_CUDA_LIBRARY")
    yield
    os.environ.pop("RINGREDUCE_CUDA_LIBRARY", None)
    if before is not None:
        os.environ["RINGREDUCE_CUDA_LIBRARY"] = before


@pytest.fixture(autouse=True)
def arrays_and_streams_end():
    """An array holds a descriptor on the emulated GPU, of which there are not too many."""
    with nothing_stays_open():
        yield


@pytest.fixture(scope="session")
def card():
    return Card()


@pytest.fixture(scope="session")
def emulated():
    if not LIBRARY.exists():
        pytest.skip("not built: make emulated")
    return Emulated()


@pytest.fixture(params=EITHER)
def gpu(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def emulation():
    """As tests.gpu.cuda_library, without a card."""
    if not EMULATED_LIBRARY.exists():
        pytest.skip("not built: make emulated")
    return emulated_library()


@pytest.fixture(params=EITHER)
def library(request):
    return request.getfixturevalue("emulation") if request.param == "emulated" else cuda_library


@pytest.fixture
def make_ranks(library):
    """Ranks that end with the test, which is skipped where they do not fit."""
    made = []

    def make(world, **how):
        try:
            made.append(Ranks(library, world, **how))
        except DoesNotFit as error:
            pytest.skip(str(error))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()
