"""Arrays of other libraries: those in order are taken, and what the others say of themselves is not believed."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import multiprocessing

import numpy as np
import pytest

import ringreduce
from tests.communicator.api import exporters
from tests.communicator.api.exporters import ADDRESS, Cuda, Dlpack, buffer
from tests.processes import python


@pytest.fixture
def comm():
    (only,) = ringreduce.local_group(1, timeout=20)
    with only:
        yield only


# --- in order -------------------------------------------------------------------------------------------------

ARRAYS = {
    "ctypes": lambda: (ctypes.c_float * 4)(1, 2, 3, 4),
    "ctypes of two dimensions": lambda: (ctypes.c_double * 2 * 2)((1, 2), (3, 4)),
    "ctypes long": lambda: (ctypes.c_long * 4)(1, 2, 3, 4),
    "RawArray": lambda: multiprocessing.RawArray("f", [1, 2, 3, 4]),
    "array": lambda: array.array("d", [1, 2, 3, 4]),
    "bytearray": lambda: bytearray([1, 2, 3, 4]),
    "mmap": lambda: mmap.mmap(-1, 4),
    "memoryview": lambda: memoryview(bytearray(16)).cast("f", (2, 2)),
    "memoryview of ctypes": lambda: memoryview((ctypes.c_int * 4)(1, 2, 3, 4)),
    "buffer without strides and format": lambda: buffer(shape=(4,), itemsize=1, len=4, format=None),
    "buffer without a shape": lambda: buffer(shape=None, ndim=1),
    "buffer without dimensions": lambda: buffer(shape=(), len=4),
    "DLPack": lambda: Dlpack(),
    "DLPack without strides, with an offset": lambda: Dlpack(offset=8, shape=(2, 2)),
    "DLPack 1.1": lambda: Dlpack(version=(1, 1)),
    "empty DLPack": lambda: Dlpack(None, shape=(0, 3)),
    "empty ctypes": lambda: (ctypes.c_float * 0)(),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_calls_take(comm, name):
    x = ARRAYS[name]()
    assert comm.all_reduce(x) is x
    assert comm.broadcast(x, 0, async_op=True).wait() is x
    if not name.startswith(("buffer without dim",)):
        assert comm.all_gather(x).shape == comm.all_to_all(x).shape
        assert comm.reduce_scatter(x).size == comm.gather(x).size
    comm.send(x, 0)
    assert comm.recv(x, 0) is x


def test_values():
    a, b = ringreduce.local_group(2, timeout=20)
    x, y = (ctypes.c_float * 3)(1, 2, 3), multiprocessing.RawArray("f", [10, 20, 30])
    work = a.all_reduce(x, async_op=True)
    b.all_reduce(y)
    work.wait()
    assert list(x) == list(y) == [11, 22, 33]
    a.close()
    b.close()


def test_an_unaligned_buffer_is_packed(comm):
    raw = bytearray(17)
    x = memoryview(raw)[1:].cast("f")
    x[2] = 5
    comm.all_reduce(x, factor=2.0)
    assert x.tolist() == [0, 0, 10, 0]


def test_buffers_are_released(comm):
    x = buffer()
    exporters.released.clear()
    comm.all_reduce(x)
    assert exporters.released.count(id(x)) == 1
    comm.all_reduce(x, async_op=True).wait()
    gc.collect()
    assert exporters.released.count(id(x)) == 2


# --- not in order ---------------------------------------------------------------------------------------------

WRONG = {
    "65 dimensions": (lambda: Dlpack(ndim=65), "65 dimensions"),
    "minus one dimension": (lambda: Dlpack(ndim=-1), "-1 dimensions"),
    "no shape": (lambda: Dlpack(shape=None, ndim=2), "dimensions but no shape"),
    "negative": (lambda: Dlpack(shape=(2, -1)), "negative length"),
    "overflow": (lambda: Dlpack(shape=(1 << 62, 4)), "more memory than there is"),
    "beyond memory": (lambda: Dlpack(shape=(1 << 57,), code=1, bits=8), "more memory than there is"),
    "null": (lambda: Dlpack(None), "no memory for its elements"),
    "large offset": (lambda: Dlpack(offset=(1 << 64) - 1), "too large an offset"),
    "wild strides": (lambda: Dlpack(strides=(1 << 61,)), "strides reach beyond all memory"),
    "lanes": (lambda: Dlpack(lanes=4), "4 lanes, which is not supported"),
    "bits": (lambda: Dlpack(bits=7), "of 7 bits and 1 lanes, which is not supported"),
    "device -1": (lambda: Dlpack(device=(2, -1)), "device number -1"),
    "another device": (lambda: Dlpack(device=(8, 0)), "neither in CPU memory nor in GPU memory"),
    "version": (lambda: Dlpack(version=(2, 0)), "version 2"),
    "read-only DLPack": (lambda: Dlpack(version=(1, 0), flags=1), "read-only"),
    "copied DLPack": (lambda: Dlpack(version=(1, 0), flags=2), "read-only"),
    "used": (lambda: Dlpack(name=b"used_dltensor"), "must be an array"),
    "bytes": (lambda: buffer(len=12), "12 bytes, which its shape and item size contradict"),
    "no items": (lambda: buffer(itemsize=0, len=0), "0 bytes, which its shape and item size contradict"),
    "suboffsets": (lambda: buffer(suboffsets=(0,)), "suboffsets"),
    "null buffer": (lambda: buffer(None), "no memory for its elements"),
    "dimensions without a shape": (lambda: buffer(shape=None, ndim=2), "dimensions but no shape"),
    "65 dimensions of a buffer": (lambda: buffer(ndim=65), "65 dimensions"),
    "swapped": (lambda: buffer(format=b">f"), "format '>f', which is not supported"),
    "structure": (lambda: buffer(format=b"T{<f:x:}"), "which is not supported"),
    "no text": (lambda: buffer(format=b"\xff"), "which is not supported"),
    "read-only": (lambda: buffer(readonly=1), "read-only"),
    "bytes object": (lambda: b"1234", "read-only"),
    "wchar": (lambda: (ctypes.c_wchar * 4)(), "which is not supported"),
    "no dict": (lambda: _with(Cuda(), None), "is no dict"),
    "CUDA: no shape": (lambda: Cuda(shape=None), "a shape that is not a tuple"),
    "CUDA: shape": (lambda: Cuda(shape=("4",)), "a shape that is not made of integers"),
    "CUDA: huge": (lambda: Cuda(shape=(1 << 70,)), "a shape that is not made of integers"),
    "CUDA: negative": (lambda: Cuda(shape=(-4,)), "negative length"),
    "CUDA: overflow": (lambda: Cuda(shape=(1 << 62, 4)), "more memory than there is"),
    "CUDA: strides": (lambda: Cuda(strides=(4, 4)), "2 strides for 1 dimensions"),
    "CUDA: no data": (lambda: Cuda(data=None), "no data: (address, whether it is read-only)"),
    "CUDA: address": (lambda: Cuda(data=("x", False)), "an address that is none"),
    "CUDA: large address": (lambda: Cuda(data=(1 << 70, False)), "an address that is none"),
    "CUDA: null": (lambda: Cuda(data=(0, False)), "no memory for its elements"),
    "CUDA: read-only": (lambda: Cuda(data=(ADDRESS, True)), "read-only"),
    "CUDA: mask": (lambda: Cuda(mask=Cuda()), "a mask"),
    "CUDA: typestr": (lambda: Cuda(typestr="garbage"), "'garbage', which is not supported"),
    "CUDA: no typestr": (lambda: Cuda(typestr=None), "which is not supported"),
    "CUDA: swapped": (lambda: Cuda(typestr=">f4"), "which is not supported"),
    "CUDA: unaligned": (lambda: Cuda(data=(ADDRESS + 1, False)), "not aligned"),
    "CUDA: not contiguous": (lambda: Cuda(strides=(8,)), "not contiguous"),
}


def _with(x, interface):
    x.__cuda_array_interface__ = interface
    return x


@pytest.mark.parametrize("name", WRONG)
def test_what_exporters_say_wrongly(comm, name):
    make, words = WRONG[name]
    for call in (comm.all_reduce, lambda x: comm.broadcast(x, 0, async_op=True), lambda x: comm.recv(x, 0)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call(make())
        said = str(caught.value)
        assert said.startswith("x ") and (words in said or "send and recv do not" in said), said
    with pytest.raises((ValueError, TypeError), match=r"^out "):
        comm.all_gather(np.ones(4, "float32"), out=make())
    assert comm.all_reduce(bytearray(b"abc")) == b"abc"  # usable


def test_a_tensor_without_memory(comm):
    torch = pytest.importorskip("torch")
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"^x has no memory for its elements"):
        comm.all_reduce(x)


@pytest.mark.parametrize("seed", range(2))
def test_a_storm(seed):
    done = python("-W", "ignore", "-X", "faulthandler", "-m", "tests.communicator.api.exporters", seed, 3000)
    assert done.returncode == 0 and done.stdout.startswith("ended"), done.stderr
