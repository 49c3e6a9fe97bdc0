"""Arrays in GPU memory for communicators: the emulated GPU's or, where there is one, a card's."""

from __future__ import annotations

import os
import threading

import numpy as np

import ringreduce
from ringreduce import cuda_library

from .ranks import EMULATED_LIBRARY, emulated_library

HAS_CARD = not cuda_library.why_not()


def library():
    """The module for the library that the engine loads in this process."""
    if HAS_CARD:
        return cuda_library
    os.environ["RINGREDUCE_CUDA_LIBRARY"] = str(EMULATED_LIBRARY)
    return emulated_library()


class GpuArray:
    """As little as a communicator asks for. `offset`: elements before it, so that it begins where no pack does."""

    def __init__(self, data, offset=0):
        data = np.ascontiguousarray(data)
        self.shape, self.dtype = data.shape, data.dtype
        self._memory = library().Memory(data.nbytes + offset * data.itemsize)
        self.address = self._memory.address + offset * data.itemsize
        self._nbytes = data.nbytes
        if data.nbytes:
            library().move(self.address, data.ctypes.data, data.nbytes)
            library().synchronize()

    @property
    def __cuda_array_interface__(self):
        return {
            **{"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False)},
            **{"version": 3, "strides": None},
        }

    def get(self, comm):
        """Its values after what was launched."""
        wait_for(comm.device_stream)
        data = np.empty(self.shape, self.dtype)
        if self._nbytes:
            library().move(data.ctypes.data, self.address, self._nbytes)
            library().synchronize()
        return data


def wait_for(stream):
    import ctypes

    library().call("synchronize", ctypes.c_void_p(stream))


def on_gpu(function, world, *args, device=0, timeout=20.0, **options):
    """Calls ``function(comm, *args)`` for each rank of a group on one GPU, in a thread of its own."""
    library()
    comms = ringreduce.local_group(world, device=device, timeout=timeout, **options)
    results, errors = [None] * world, [None] * world

    def main(comm):
        try:
            with comm:
                results[comm.rank] = function(comm, *args)
        except BaseException as error:
            errors[comm.rank] = error

    threads = [threading.Thread(target=main, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
