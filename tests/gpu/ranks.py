"""Ranks of one process, each with a stream of its own, and the kernels that are their parts of collectives.

Through a module with the interface of tests.gpu.cuda_library: libringreduce_cuda.so's, or of the library that
emulates it, build/tests/libringreduce_cuda_emulated.so."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ringreduce import _engine

from . import cuda_library
from .limits import PATIENCE
from .probe import HAS_CARD

LIBRARIES = Path(
    os.environ.get("EMULATED_LIBRARIES") or Path(__file__).resolve().parents[2] / "build" / "tests"
)
EMULATED_LIBRARY = LIBRARIES / "libringreduce_cuda_emulated.so"
MOST_RANKS, MOST_SLOTS, LINE, ROUND_BYTES, MOST_BLOCKS, MOST_ARENAS = 32, 64, 256, 32768, 64, 32
AROUND, PATTERN = 256, 0xA5
DUTIES = {"one_shot": 1, "two_shot": 1, "direct": 2}
ON_EITHER = pytest.mark.skipif(
    not HAS_CARD and not EMULATED_LIBRARY.exists(), reason="not built: make emulated"
)
BUILT = pytest.mark.skipif(not EMULATED_LIBRARY.exists(), reason="not built: make emulated")
EMULATED_ONLY = pytest.mark.skipif(
    HAS_CARD or not EMULATED_LIBRARY.exists(), reason="on a card, or not built: make emulated"
)
OPS, DTYPES = _engine.reduce.ops(), _engine.reduce.dtypes()


def emulated_library():
    """The module once more, for the other library: in a process there may be a card, too."""
    name = "tests.gpu.emulated_cuda_library"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, cuda_library.__file__)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        module.LIBRARY = EMULATED_LIBRARY
    return sys.modules[name]


def wait_until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# --- as in csrc/gpu/kernels/cuda/errand.h -----------------------------------------------------------


def in_lines(size):
    return -(-size // LINE) * LINE


class Boxes(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("arena_bytes", ctypes.c_uint64),
        ("lanes", ctypes.c_int32),
    ]

    def words_bytes(self):
        return in_lines(8 * (6 * self.world + 4))

    def bytes(self):
        posted = in_lines(8 * self.world * MOST_SLOTS)
        arenas = min(self.blocks, MOST_ARENAS)
        flagged = 4 * ROUND_BYTES + in_lines(64 * self.world)
        return self.blocks * self.words_bytes() + arenas * (posted + flagged + self.arena_bytes)

    def phases(self, block):
        """Where a block counts its phases; two words on, whether it is in a call."""
        return block * self.words_bytes() + 8 * (6 * self.world + 1)


class Report(ctypes.Structure):
    _fields_ = [
        ("aborts", ctypes.c_uint64 * (MOST_BLOCKS * LINE // 8)),
        *[(name, ctypes.c_uint64) for name in ("differs", "overlaps", "begun")],
        ("done", ctypes.c_uint64 * MOST_BLOCKS),
        ("direct", ctypes.c_uint64),
    ]

    @property
    def abort(self):
        return self.aborts[0]

    @abort.setter
    def abort(self, flag):
        self.aborts[:] = [flag] * len(self.aborts)


class Share(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_uint64) for name in ("source", "target", "bytes")],
        *[(f"{way}_{end}", ctypes.c_int32) for way in ("from", "to") for end in ("begin", "end")],
        *[(name, ctypes.c_bool) for name in ("from_others", "to_others", "copies", "exchanges", "spreads")],
        *[(name, ctypes.c_uint64) for name in ("source_step", "target_step")],
    ]


class Scale(ctypes.Structure):
    _fields_ = [("factor", ctypes.c_double), ("divisor", ctypes.c_int64)]


class Errand(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rank", "dtype", "op", "wire", "arrays", "duty")],
        ("contract", ctypes.c_uint64),
        *[(name, ctypes.c_void_p) for name in ("input", "output")],
        *[(name, ctypes.c_uint64 * MOST_RANKS) for name in ("inputs", "outputs")],
        ("share", Share),
        *[(name, ctypes.c_void_p) for name in ("program", "temp")],
        *[(name, Scale) for name in ("last", "own")],
        ("scales", ctypes.c_bool),
        ("boxes", Boxes),
        ("memories", ctypes.c_void_p * MOST_RANKS),
        ("report", ctypes.POINTER(Report)),
    ]


# --- ranks -------------------------------------------------------------------------------------------------


class Span:
    """An array on the current device, `shift` bytes after a multiple of 256."""

    def __init__(self, library, data, shift=0):
        self.library, self.dtype, self.shape, self.size = library, data.dtype, data.shape, data.nbytes
        self.begin = AROUND + shift
        self.memory = library.Memory(self.begin + data.nbytes + AROUND)
        around = np.full(self.memory.size, PATTERN, np.uint8)
        around[self.begin :][: self.size] = data.view(np.uint8)
        self.memory.put(around)
        self.address = self.memory.address + self.begin

    def get(self):
        around = self.memory.get()
        end = self.begin + self.size
        assert (around[: self.begin] == PATTERN).all() and (around[end:] == PATTERN).all()
        return around[self.begin : end].copy().view(self.dtype).reshape(self.shape)

    def close(self):
        self.memory.close()


@dataclass
class Part:
    """Of the bytes that a rank combines, as Share has it. None: all."""

    source: int = 0
    target: int = 0
    bytes: int | None = None
    from_all: bool = True
    to_all: bool = True

    def share(self, rank, world, size):
        ranges = [(0, world) if all else (rank, rank + 1) for all in (self.from_all, self.to_all)]
        return Share(
            self.source, self.target, size, *ranges[0], *ranges[1], self.from_all, self.to_all, False, False
        )


class Rank:
    def __init__(self, library, rank, device, boxes):
        self.library, self.rank, self.device, self.boxes = library, rank, device, boxes
        self.choose()
        self.stream = library.Stream()
        self.memory = library.Memory(boxes.bytes())
        self.memory.fill(0)
        address = ctypes.c_void_p()
        library.call("allocate_on_host", ctypes.byref(address), ctypes.c_size_t(ctypes.sizeof(Report)))
        self.report = ctypes.cast(address, ctypes.POINTER(Report))

    def done(self):
        """How many calls all of its blocks have ended."""
        return min(self.report.contents.done[: self.boxes.blocks])

    def choose(self):
        self.library.call("choose_device", self.device)

    def close(self):
        self.choose()
        self.stream.close()
        self.memory.close()
        self.library.call("free_on_host", self.report)


class DoesNotFit(Exception):
    """All ranks' blocks cannot run at the same time."""


class Ranks:
    """Spread over the devices that there are."""

    def __init__(self, library, world, blocks=3, arena_bytes=0):
        self.library, self.world = library, world
        self.devices = min(library.count_devices(), world)
        fit = ctypes.c_int()
        library.call("fit", ctypes.byref(fit))
        if -(-world // self.devices) * blocks > fit.value:
            raise DoesNotFit(f"{world} ranks of {blocks} blocks on {self.devices} devices of {fit.value}")
        for device in range(self.devices):
            library.call("choose_device", device)
            library.call("fit", ctypes.byref(fit))
            for other in range(self.devices):
                if other != device:
                    library.call("reach", other)
        self.boxes = Boxes(blocks, world, arena_bytes)
        self.ranks = [Rank(library, rank, rank % self.devices, self.boxes) for rank in range(world)]

    def spans(self, arrays, shift=0):
        """Each rank's array on its device. `shift`: bytes, or a function of the rank."""
        made = []
        for rank, array in zip(self.ranks, arrays, strict=True):
            rank.choose()
            made.append(Span(self.library, array, shift(rank.rank) if callable(shift) else shift))
        return made

    def errand(self, rank, op, given, result, part=None, contract=1, contracts=None):
        part = part or Part()
        scale = Scale(1 / self.world, self.world) if op == "avg" else Scale(1, 1)
        size = given.size if part.bytes is None else part.bytes
        return Errand(
            rank=rank, dtype=DTYPES.index(given.dtype.name), op=OPS.index(op),
            contract=contracts[rank] if contracts else contract, input=given.address, output=result.address,
            inputs=(ctypes.c_uint64 * MOST_RANKS)(*[given.address] * self.world),
            outputs=(ctypes.c_uint64 * MOST_RANKS)(*[result.address] * self.world),
            share=part.share(rank, self.world, size),
            last=scale, own=Scale(1, 1), boxes=self.boxes, report=self.ranks[rank].report,
            memories=(ctypes.c_void_p * MOST_RANKS)(*[one.memory.address for one in self.ranks]),
        )  # fmt: skip

    def launch(self, kernel, errands):
        """Those of some or all ranks."""
        for errand in errands:
            rank = self.ranks[errand.rank]
            rank.choose()
            errand.duty = DUTIES[kernel]
            errand.share.spreads = kernel == "two_shot"
            self.library.call("run", ctypes.byref(errand), rank.stream.handle)

    def finish(self):
        for rank in self.ranks:
            self.library.synchronize(rank.stream)

    def abort(self):
        for rank in self.ranks:
            rank.report.contents.abort = 1

    def close(self):
        for rank in self.ranks:
            rank.close()
        self.library.call("choose_device", 0)
