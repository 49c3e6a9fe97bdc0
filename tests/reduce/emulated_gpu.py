"""The GPU's functions on the CPU: build/tests/libreduce_emulated.so, from tests/cpp/emulated."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from reduce_oracle import engine

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "tests" / "libreduce_emulated.so"
DTYPES, OPS, WIRES = engine.dtypes(), engine.ops(), engine.wires()


def library():
    if not LIBRARY.exists():
        pytest.skip("not built by make test", allow_module_level=True)
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.emulated_combine.restype = ctypes.c_char_p
    loaded.emulated_copy.restype = ctypes.c_char_p
    loaded.emulated_combine_coded.restype = ctypes.c_char_p
    return loaded


LOADED = library()


def pointers(spans):
    return (ctypes.c_void_p * max(len(spans), 1))(*[span.ctypes.data for span in spans])


def check(failure):
    if failure:
        raise ValueError(failure.decode())


def combine(dtype, op, destinations, sources, scale=1.0, *, threads=7, known=True, backwards=False):
    """Into spans of bytes; by the kernel for this number of sources, or by that for any."""
    count = sources[0].size // engine.size_of(dtype) if sources else 0
    check(
        LOADED.emulated_combine(
            *(DTYPES.index(dtype), OPS.index(op), len(sources) if known else 0),
            *(pointers(destinations), len(destinations), pointers(sources), len(sources)),
            *(ctypes.c_size_t(count), ctypes.c_double(scale), ctypes.c_size_t(threads), int(backwards)),
        )
    )


def copy(destinations, source, *, threads=7):
    check(
        LOADED.emulated_copy(
            *(pointers(destinations), len(destinations), ctypes.c_void_p(source.ctypes.data)),
            *(ctypes.c_size_t(source.size), ctypes.c_size_t(threads), 0),
        )
    )


def combine_coded(
    wire,
    plain,
    op,
    destinations,
    sources,
    count,
    scale=1.0,
    *,
    coded_in=(),
    coded_out=(),
    settle=False,
    warps=3,
):
    """`coded_in` and `coded_out` are the places of the sources and destinations that are encoded."""
    check(
        LOADED.emulated_combine_coded(
            *(WIRES.index(wire), DTYPES.index(plain), OPS.index(op)),
            *(sum(1 << place for place in coded_in), sum(1 << place for place in coded_out), int(settle)),
            *(pointers(destinations), len(destinations), pointers(sources), len(sources)),
            *(ctypes.c_size_t(count), ctypes.c_double(scale), ctypes.c_size_t(warps), 0),
        )
    )


def placed(span, shift):
    """A copy of its bytes that begins `shift` bytes after a multiple of 64, with room around it."""
    memory = np.full(span.nbytes + 448, 0xA5, np.uint8)
    begin = -memory.ctypes.data % 64 + 64 + shift
    place = memory[begin : begin + span.nbytes]
    place[:] = span.view(np.uint8)
    return place


def surroundings_untouched(place):
    memory = place.base
    begin = place.ctypes.data - memory.ctypes.data
    return (memory[:begin] == 0xA5).all() and (memory[begin + place.size :] == 0xA5).all()
