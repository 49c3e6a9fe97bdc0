"""The state of the CUDA driver in this process."""

from __future__ import annotations

import ctypes
import os


def has_initialized_driver() -> bool:
    """Returns whether this process has initialized the CUDA driver. Asking does not initialize it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)
