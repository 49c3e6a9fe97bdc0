"""libringreduce_cuda.so where there is no driver: it can be loaded, and says what it cannot do."""

import pytest

from . import cuda_library
from .probe import HAS_CARD
from .programs import ran


@pytest.mark.skipif(not cuda_library.is_built(), reason="built without CUDA")
@pytest.mark.skipif(HAS_CARD, reason="there is a GPU")
def test_without_a_card_calls_say_what_they_were_to_launch():
    refused = r"float32 sum of 2 sources into 1 destinations of 9 elements: cudaError\w+ \("
    with pytest.raises(RuntimeError, match=refused):
        cuda_library.combine("float32", "sum", [256], [256, 512], 9)
    with pytest.raises(RuntimeError, match="memory: cudaError"):
        cuda_library.Memory(16)
    with pytest.raises(RuntimeError, match="dtype 99 is unknown"):
        cuda_library.call("combine", 99, 0, None, 1, None, 1, None, None, None, 0)
    assert "cudaError" in cuda_library.why_not()


def test_collecting_the_tests_does_not_touch_the_gpu():
    """Ranks that they fork later could not use it."""
    look = "import tests.gpu.conftest, tests.gpu.gpu_arrays; print(open('/proc/self/maps').read())"
    said = ran("-c", look).stdout
    assert "libringreduce.so" in said and "libringreduce_cuda" not in said
