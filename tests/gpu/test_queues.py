"""How many queues there are between a process and a GPU: asked for before CUDA reads it, and not later."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .ranks import EMULATED_LIBRARY

DRIVER = EMULATED_LIBRARY.with_name("libcuda_driver_emulated.so")
VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"

pytestmark = [
    pytest.mark.timeout(60),
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
ringreduce.local_group(2, device=0)
print(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"), driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


def _queues(state, **environment):
    settings = {name: value for name, value in os.environ.items() if name != VARIABLE}
    settings |= {"RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY), **environment}
    command = [sys.executable, "-c", PROGRAM, str(DRIVER), state]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    queues, of_driver = done.stdout.split()
    assert (of_driver == "0") == (state == "initialized")
    return queues


def test_a_group_asks_for_queues_while_the_driver_is_not_initialized():
    assert _queues("loaded") == "32"
    assert _queues("loaded", **{VARIABLE: "12"}) == "12"


def test_a_group_counts_on_no_more_queues_than_an_initialized_driver_has():
    assert _queues("initialized") == "None"
