"""Exporters of arrays that say what they are told to. As a program: a storm of random ones, which may crash nothing."""

from __future__ import annotations

import ctypes
import random
import sys

import ringreduce

memory = ctypes.create_string_buffer(1 << 16)
ADDRESS = (ctypes.addressof(memory) + (1 << 15)) // 64 * 64  # in its middle: strides may be negative


def numbers(values):
    """A C array of 64-bit integers; None for None."""
    return None if values is None else (ctypes.c_int64 * max(len(values), 1))(*values)


def pointer_to(array):
    return ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)) if array is not None else None


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


class Dlpack:
    """An array that supports DLPack: version None is the first, without a number."""

    def __init__(
        self, data=ADDRESS, shape=(4,), strides=None, ndim=None, code=2, bits=32, lanes=1, device=(1, 0), offset=0,
        version=None, flags=0, name=None,
    ):  # fmt: skip
        self._kept = numbers(shape), numbers(strides)
        ndim = len(shape or ()) if ndim is None else ndim
        tensor = DLTensor(data, *device, ndim, code, bits, lanes, *map(pointer_to, self._kept), offset)
        if version is None:
            self._managed, self._name = Managed(tensor), b"dltensor"
        else:
            self._managed, self._name = Versioned(*version, None, None, flags, tensor), b"dltensor_versioned"
        self._name = name or self._name
        self._device = device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), self._name, None)


class PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("suboffsets", ctypes.POINTER(ctypes.c_int64)), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]  # fmt: skip


_GET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(PyBuffer), ctypes.c_int)
described: dict[int, dict] = {}
released: list[int] = []


@_GET
def _get(exporter, buffer, flags):
    fields = described[id(exporter)]
    for name, value in fields.items():
        setattr(
            buffer.contents, name, pointer_to(value) if name in ("shape", "strides", "suboffsets") else value
        )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(exporter))
    buffer.contents.obj = id(exporter)
    return 0


@ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.POINTER(PyBuffer))
def _release(exporter, buffer):
    released.append(id(exporter))


def _make_type():
    slots = (_Slot * 3)(
        _Slot(1, ctypes.cast(_get, ctypes.c_void_p)), _Slot(2, ctypes.cast(_release, ctypes.c_void_p)), _Slot(0, None)
    )  # fmt: skip
    spec = _Spec(b"tests.Exporter", object.__basicsize__, 0, 1 << 10, slots)  # Py_TPFLAGS_BASETYPE
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Spec)]
    return make(ctypes.byref(spec))


_Exporter = _make_type()


def buffer(
    buf=ADDRESS,
    shape=(4,),
    strides=None,
    suboffsets=None,
    ndim=None,
    itemsize=4,
    len=16,
    format=b"f",
    readonly=0,
):
    """An array that supports the buffer protocol."""
    exporter = _Exporter()
    described[id(exporter)] = {
        "buf": buf, "len": len, "itemsize": itemsize, "readonly": readonly, "format": format, "internal": None,
        "ndim": sum(1 for _ in shape or ()) if ndim is None else ndim,
        "shape": numbers(shape), "strides": numbers(strides), "suboffsets": numbers(suboffsets),
    }  # fmt: skip
    return exporter


class Cuda:
    """An array that has a CUDA array interface."""

    def __init__(self, **changed):
        usual = {"shape": (4,), "typestr": "<f4", "data": (ADDRESS, False), "strides": None, "version": 3}
        self.__cuda_array_interface__ = {**usual, **changed}


# --- the storm ------------------------------------------------------------------------------------------------

LENGTHS = [0, 1, 2, 3, 5, -1, -(1 << 63), 1 << 62, (1 << 63) - 1]
AXES = [0, 1, 1, 2, 2, 3, 64, 65, -1, 1 << 30, -(1 << 31)]
ADDRESSES = [None, ADDRESS, ADDRESS, ADDRESS + 1]
ODD = [None, 0, 1, -1, 2.5, "x", b"x", (), (1,), (1, 2, 3), [1], {}, object(), 1 << 70, float("nan")]


def some_lengths(rng, most=3):
    return [rng.choice(LENGTHS) for _ in range(rng.randint(0, most))]


def some_of(rng, choices):
    """Wrong values for a few fields of an array that is right otherwise."""
    return {name: rng.choice(choices[name]) for name in rng.sample(sorted(choices), rng.randint(0, 2))}


def axes_of(rng, changed):
    """No number of axes that would let anyone read behind the shape."""
    shape = changed.get("shape", (4,))
    if rng.random() < 0.2:
        changed["ndim"] = rng.choice([n for n in AXES if n <= len(shape or ()) or n > 64 or shape is None])
    return changed


def random_dlpack(rng):
    axes = [rng.choice(LENGTHS) for _ in range(64)]
    return Dlpack(**axes_of(rng, some_of(rng, {
        "data": ADDRESSES, "shape": [some_lengths(rng), some_lengths(rng), None], "strides": [None, [1], axes],
        "code": [0, 1, 2, 3, 4, 5, 6, 10, 200], "bits": [0, 1, 7, 8, 16, 32, 64, 128, 255], "lanes": [0, 1, 2],
        "device": [(1, 0), (1, -1), (2, -1), (3, 0), (-1, 0), (99, 7)], "offset": [0, 4, 3, (1 << 64) - 1],
        "version": [None, (1, 0), (1, 1), (0, 5), (2, 0), (1 << 31, 0)], "flags": [0, 1, 2, 4, 7],
        "name": [None, b"used_dltensor", b"x"],
    })))  # fmt: skip


def random_buffer(rng):
    axes = [rng.choice(LENGTHS) for _ in range(64)]
    return buffer(**axes_of(rng, some_of(rng, {
        "buf": ADDRESSES, "shape": [some_lengths(rng), some_lengths(rng), None], "strides": [None, [4], axes],
        "suboffsets": [None, [-1], [0], axes], "itemsize": [0, 1, 2, 4, 8, 16, 3, -1, -4, 1 << 40],
        "len": [0, 1, 4, 8, 12, 16, 24, -1, -16], "readonly": [0, 1],
        "format": [None, b"", b"f", b"<f", b">f", b"Zd", b"i", b"?", b"T{<f:x:}", b"@", b"Z", b"10f", b"\xff"],
    })))  # fmt: skip


def random_cuda(rng):
    fields = ["shape", "typestr", "data", "strides", "version", "mask", "descr", "stream"]
    changed = {name: rng.choice(ODD) for name in rng.sample(fields, rng.randint(1, 3))}
    if rng.random() < 0.3:
        changed["shape"] = tuple(some_lengths(rng))
    array = Cuda(**changed)
    if rng.random() < 0.1:
        array.__cuda_array_interface__ = rng.choice(ODD)
    elif rng.random() < 0.2:
        del array.__cuda_array_interface__[rng.choice(["shape", "typestr", "data"])]
    return array


def main(seed, count):
    (comm,) = ringreduce.local_group(1, timeout=20)
    rng = random.Random(seed)
    taken = 0
    for _ in range(count):
        x = rng.choice([random_dlpack, random_buffer, random_cuda])(rng)
        name, given = rng.choice([
            ("all_reduce", {}), ("all_reduce", {"async_op": True}), ("broadcast", {}), ("all_gather", {}),
            ("reduce_scatter", {}), ("gather", {}), ("all_to_all", {}), ("send", {"dest": 0}), ("scatter", {}),
        ])  # fmt: skip
        try:
            work = getattr(comm, name)(x, **given)
            if given.get("async_op"):
                work.wait()
            taken += 1
        except (ValueError, TypeError, BufferError, ringreduce.Error) as error:
            said = str(error)
            known = said.startswith(("x ", "out ")) or "GPU library" in said
            assert known, (name, said, getattr(x, "__dict__", None), described.get(id(x)))
    assert taken > count // 100, taken
    assert comm.all_reduce(bytearray(8)) == bytearray(8)
    print("ended", taken)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
