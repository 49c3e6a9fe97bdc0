"""CUDA's driver, as this process has it."""

from __future__ import annotations

import ctypes
import os


def has_initialized_driver() -> bool:
    """Asks the driver that this process has loaded, if any. To ask does not initialize it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)
