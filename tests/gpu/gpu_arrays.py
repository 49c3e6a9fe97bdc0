"""Arrays in GPU memory for communicators: the emulated GPU's or, where there is one, a card's."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np

import ringreduce

from . import cuda_library
from .limits import PATIENCE
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY, emulated_library


def library():
    """The module for the library that the engine loads in this process."""
    if HAS_CARD:
        return cuda_library
    os.environ["RINGREDUCE_CUDA_LIBRARY"] = str(EMULATED_LIBRARY)
    return emulated_library()


made = []  # memory of arrays, and streams, which end with the test: until then a kernel may use them


def kept(one):
    """Threads share the list, so another's may follow before this one reads its end."""
    made.append(one)
    return one


def new_stream():
    return kept(library().Stream())


@contextmanager
def nothing_stays_open():
    """Ends what was made. Fails if a stream stays: queues between a process and a GPU are few, and each takes one."""
    modules = cuda_library, emulated_library()
    before = [set(module.Stream.open) for module in modules]
    yield
    while made:
        made.pop().close()
    left = [one for module, old in zip(modules, before, strict=True) for one in module.Stream.open - old]
    for stream in left:
        stream.close()
    assert not left, f"the test has left {len(left)} streams open"


def integers(rank, count, dtype="float32"):
    return np.random.default_rng(rank).integers(0, 9, count).astype(dtype)


class View:
    """Elements of device memory, with as little as a communicator asks for. `offset`: bytes before them."""

    def __init__(self, memory, shape, dtype="float32", offset=0):
        self.shape, self.dtype = shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype)
        self.address = memory.address + offset

    def put(self, data):
        data = np.ascontiguousarray(data, self.dtype)
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
        return self.values()

    def values(self):
        data = np.empty(self.shape, self.dtype)
        if data.nbytes:
            library().move(data.ctypes.data, self.address, data.nbytes)
            library().synchronize()
        return data


class GpuArray(View):
    """`offset`: elements before it, so that it begins where no pack does."""

    def __init__(self, data, offset=0):
        data = np.ascontiguousarray(data)
        memory = kept(library().Memory(data.nbytes + offset * data.itemsize))
        super().__init__(memory, data.shape, data.dtype, offset * data.itemsize)
        self.put(data)


class _Tensor(ctypes.Structure):
    """As dlpack.h has a DLManagedTensor, of one dimension."""

    _fields_ = [
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)),
        *(
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
        ),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))),
        *(("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
    ]


class DlpackArray:
    """Another array's memory, known by DLPack alone."""

    CUDA = 2

    def __init__(self, array, stride=1, device_type=CUDA):
        code = {"i": 0, "u": 1, "f": 2, "V": 4}[array.dtype.kind]  # V: bfloat16
        self._array, self.shape, self.get = array, array.shape, array.get
        self._shape, self._strides = (ctypes.c_int64 * 1)(*array.shape), (ctypes.c_int64 * 1)(stride)
        self._tensor = _Tensor(
            *(array.address, device_type, 0, 1, code, 8 * array.dtype.itemsize, 1),
            *(self._shape, self._strides, 0, None, None),
        )

    def __dlpack_device__(self):
        return self._tensor.device_type, 0

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def pieces_of_memory():
    """How many pieces of the emulated GPU's memory this process has made."""
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum("emulated-gpu" in os.readlink(file) for file in files if os.path.lexists(file))


def failure_of(call):
    """The error that ends a group, when this call or a later one finds it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            call()
        except ringreduce.Error as error:
            return error
        time.sleep(0.01)
    raise AssertionError("the group goes on")


def in_threads(*functions):
    """Their results, once all have ended, or what one of them has raised."""
    results, errors = [None] * len(functions), []

    def main(index):
        try:
            results[index] = functions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=main, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return results


def wait_for(stream):
    library().call("synchronize", ctypes.c_void_p(stream))


def on_gpu(function, world, *args, device=0, timeout=PATIENCE, **options):
    """Calls ``function(comm, *args)`` for each rank of a group on one GPU, in a thread of its own."""
    library()
    comms = ringreduce.local_group(world, device=device, timeout=min(timeout, PATIENCE), **options)

    def main(comm):
        with comm:
            return function(comm, *args)

    return in_threads(*(partial(main, comm) for comm in comms))
