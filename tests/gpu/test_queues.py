"""What CUDA reads when it starts, for ranks that share a GPU: set before, and not later."""

from __future__ import annotations

import pytest

from .programs import ran
from .ranks import EMULATED_LIBRARY

DRIVER = EMULATED_LIBRARY.with_name("libcuda_driver_emulated.so")
QUEUES, LOADING = "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"

pytestmark = [
    pytest.mark.skipif(
        not EMULATED_LIBRARY.exists() or not DRIVER.exists(), reason="not built: make emulated"
    ),
]

PROGRAM = """
import ctypes, os, sys
import ringreduce

driver = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "initialized":
    driver.cuInit(0)
devices = [int(device) for device in sys.argv[3:]]
ringreduce.local_group(len(devices), device=devices)
settings = [os.environ.get(name) for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING")]
print(*settings, driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


def _settings(state, devices=(0, 0), **environment):
    settings = {QUEUES: None, LOADING: None, "RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY), **environment}
    *found, of_driver = ran("-c", PROGRAM, DRIVER, state, *devices, **settings).stdout.split()
    assert (of_driver == "0") == (state == "initialized")
    return found


def test_a_group_sets_them_while_the_driver_is_not_initialized():
    assert _settings("loaded") == ["32", "EAGER"]
    assert _settings("loaded", **{QUEUES: "12", LOADING: "LAZY"}) == ["12", "LAZY"]


def test_kernels_are_loaded_when_they_are_used_if_no_ranks_share_a_gpu():
    assert _settings("loaded", (0, 1)) == ["32", "None"]


def test_a_group_counts_on_no_more_than_an_initialized_driver_has():
    assert _settings("initialized") == ["None", "None"]
