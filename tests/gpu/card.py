"""A GPU, with the interface of emulated.py."""

from __future__ import annotations

import numpy as np

from . import cuda_library
from .cuda_library import Launch, Memory
from .emulated import AROUND, PATTERN, addresses


class Place:
    def __init__(self, memory, begin, data, shift):
        around = np.full(data.size + 2 * AROUND + shift, PATTERN, np.uint8)
        around[AROUND + shift :][: data.size] = data
        self.begin, self.all = begin, around.size
        self.offset, self.size = AROUND + shift, data.size
        memory.put(around, begin)
        self.address = memory.address + begin + self.offset

    def _everything(self):
        data = np.empty(self.all, np.uint8)
        cuda_library.move(data.ctypes.data, self.address - self.offset, self.all)
        cuda_library.synchronize()
        return data

    def read(self):
        return self._everything()[self.offset :][: self.size].copy()

    def is_untouched_around(self):
        data = self._everything()
        return (data[: self.offset] == PATTERN).all() and (data[self.offset + self.size :] == PATTERN).all()


class Card:
    """A group is a number of thread blocks. Places are cut from one memory, again from its beginning when it ends."""

    def __init__(self):
        self.memory = Memory(256 << 20)
        self.begin = 0

    def place(self, span, shift=0):
        room = -(-(span.nbytes + 2 * AROUND + int(shift)) // AROUND) * AROUND
        if self.begin + room > self.memory.size:
            self.begin = 0
        self.begin += room
        return Place(self.memory, self.begin - room, span.view(np.uint8), int(shift))

    def combine(
        self, dtype, op, destinations, sources, count, scale=1.0, *, group=0, known=True, backwards=False
    ):
        # Which kernel it is and in which order threads run is the card's own choice.
        del known, backwards
        cuda_library.combine(dtype, op, *addresses(destinations, sources), count, scale, Launch(blocks=group))

    def copy(self, destinations, source, size, *, group=0):
        to, _ = addresses(destinations, [])
        cuda_library.copy(to, source.address, size, Launch(blocks=group))

    def combine_coded(self, coded, destinations, sources, count, scale=1.0, *, group=0):
        cuda_library.combine_coded(
            coded, *addresses(destinations, sources), count, scale, Launch(blocks=group)
        )
