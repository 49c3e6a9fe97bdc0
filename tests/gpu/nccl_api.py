"""libringreduce_nccl.so as a program calls it, from Python: ranks are threads of this process."""

from __future__ import annotations

import ctypes
import time
from functools import partial

import numpy as np

from ringreduce.build import nccl_library

from . import gpu_arrays
from .gpu_arrays import GpuArray, library, new_stream
from .limits import PATIENCE

SUCCESS, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 2, 4, 5, 6
INT32, FLOAT32 = 2, 7
SUM, PROD = 0, 1


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_ubyte * 128)]


class Config(ctypes.Structure):
    """As ncclConfig_t was in NCCL 2.18. What is not given is unset."""

    UNSET = -(2**31)
    _fields_ = [
        *(("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint)),
        *((name, ctypes.c_int) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
        *(("netName", ctypes.c_char_p), ("splitShare", ctypes.c_int)),
    ]

    def __init__(self, **given):
        unset = dict.fromkeys(("blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "splitShare"), self.UNSET)
        size = ctypes.sizeof(Config)
        super().__init__(**{**unset, "size": size, "magic": 0xCAFEBEEF, "version": 21800, **given})


class LaterConfig(ctypes.Structure):
    """As ncclConfig_t is since NCCL 2.27, up to CTAPolicy."""

    _fields_ = [
        *Config._fields_,
        *(("trafficClass", ctypes.c_int), ("commName", ctypes.c_char_p)),
        *((name, ctypes.c_int) for name in ("collnetEnable", "CTAPolicy")),
    ]

    def __init__(self, **given):
        unset = {name: Config.UNSET for name, kind in self._fields_[3:] if kind is ctypes.c_int}
        size = ctypes.sizeof(LaterConfig)
        super().__init__(**{**unset, "size": size, "magic": 0xCAFEBEEF, "version": 22700, **given})


class Failed(Exception):
    def __init__(self, result, text):
        super().__init__(text)
        self.result = result


_loaded = None


def nccl():
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(str(nccl_library.STAND_IN))
        _loaded.ncclGetLastError.restype = ctypes.c_char_p
        _loaded.ncclCommInitRankConfig.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int, ctypes.c_void_p)
        ]
    return _loaded


def last_error():
    return nccl().ncclGetLastError(None).decode()


def check(result):
    if result != SUCCESS:
        raise Failed(result, last_error())


def unique_id():
    library()
    made = UniqueId()
    check(nccl().ncclGetUniqueId(ctypes.byref(made)))
    return made


class Rank:
    """One rank's communicator, its stream, and calls of float32 arrays."""

    def __init__(self, world, rank, id, device=None, config=None):
        self.world, self.rank = world, rank
        self.device = rank % library().count_devices() if device is None else device
        library().call("choose_device", self.device)
        self.comm = ctypes.c_void_p()
        how = config and ctypes.byref(config)
        check(nccl().ncclCommInitRankConfig(ctypes.byref(self.comm), world, id, rank, how))
        self.stream = new_stream()

    def array(self, values=(1, 2, 3), dtype="float32"):
        return GpuArray(np.asarray(values, dtype))

    def all_reduce(self, array, dtype=FLOAT32, op=SUM):
        size = ctypes.c_size_t(array.shape[0])
        memory = ctypes.c_void_p(array.address)
        check(nccl().ncclAllReduce(memory, memory, size, dtype, op, self.comm, self.stream.handle))

    def message(self, name, array, peer):
        size = ctypes.c_size_t(array.shape[0])
        call = getattr(nccl(), name)
        check(call(ctypes.c_void_p(array.address), size, FLOAT32, peer, self.comm, self.stream.handle))

    def values(self, array):
        library().synchronize(self.stream)
        return array.values().tolist()

    def async_error(self):
        found = ctypes.c_int()
        check(nccl().ncclCommGetAsyncError(self.comm, ctypes.byref(found)))
        return found.value

    def wait_for_error(self, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while (found := self.async_error()) == SUCCESS:
            assert time.monotonic() < end
            time.sleep(0.005)
        return found

    def abort(self):
        check(nccl().ncclCommAbort(self.comm))

    def destroy(self):
        check(nccl().ncclCommDestroy(self.comm))


def in_threads(*functions):
    """Their results, or the exceptions of this module's that they raised."""

    def main(function):
        try:
            return function()
        except Failed as failed:
            return failed

    return gpu_arrays.in_threads(*(partial(main, function) for function in functions))


def ranks(world, **config):
    """All ranks of a communicator."""
    kind = LaterConfig if "CTAPolicy" in config else Config
    id, how = unique_id(), kind(**config) if config else None
    made = in_threads(*(lambda rank=rank: Rank(world, rank, id, config=how) for rank in range(world)))
    for one in made:
        if isinstance(one, Failed):
            raise one
    return made
