"""The GPU's threads, one after another on the CPU: build/tests/libreduce_emulated.so, from emulated_threads/."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from ringreduce import _engine

from .cuda_library import Coded, spans

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "tests" / "libreduce_emulated.so"
AROUND = 256  # bytes on both sides of a place
PATTERN = 0xA5


class Place:
    """Bytes that begin `shift` bytes after a multiple of 256."""

    def __init__(self, data, shift):
        self.memory = np.full(data.size + 3 * AROUND + shift, PATTERN, np.uint8)
        self.begin = -self.memory.ctypes.data % AROUND + AROUND + shift
        self.size = data.size
        self.memory[self.begin : self.begin + self.size] = data
        self.address = self.memory.ctypes.data + self.begin

    def read(self):
        return self.memory[self.begin : self.begin + self.size].copy()

    def is_untouched_around(self):
        end = self.begin + self.size
        return (self.memory[: self.begin] == PATTERN).all() and (self.memory[end:] == PATTERN).all()


class Emulated:
    """A group is a number of threads, or of warps where spans are encoded."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))

    def place(self, span, shift=0):
        return Place(span.view(np.uint8), int(shift))

    def _call(self, name, *arguments):
        function = getattr(self.library, f"emulated_{name}")
        function.restype = ctypes.c_char_p
        if failure := function(*arguments):
            raise RuntimeError(failure.decode())

    def combine(
        self, dtype, op, destinations, sources, count, scale=1.0, *, group=7, known=True, backwards=False
    ):
        """By the kernel for this number of sources, or, if it is not to be known, by that for any."""
        names = _engine.reduce
        self._call(
            *("combine", names.dtypes().index(dtype), names.ops().index(op), len(sources) if known else 0),
            *spans(*addresses(destinations, sources)),
            *(ctypes.c_size_t(count), ctypes.c_double(scale), ctypes.c_size_t(group), int(backwards)),
        )

    def copy(self, destinations, source, size, *, group=7):
        to, count, _, _ = spans(*addresses(destinations, []))
        self._call(
            *("copy", to, count, ctypes.c_void_p(source.address)),
            *(ctypes.c_size_t(size), ctypes.c_size_t(group), 0),
        )

    def combine_coded(self, coded: Coded, destinations, sources, count, scale=1.0, *, group=3):
        self._call(
            *("combine_coded", *coded.arguments(), *spans(*addresses(destinations, sources))),
            *(ctypes.c_size_t(count), ctypes.c_double(scale), ctypes.c_size_t(group), 0),
        )


def addresses(destinations, sources):
    return [place.address for place in destinations], [place.address for place in sources]
