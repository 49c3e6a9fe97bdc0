"""In which order blocks tell their peers and the host that a call has begun.

A release fence waits until all words have arrived. A word to the host takes longer than one to a peer, so no peer
waits for one.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from .gpu_arrays import GpuArray, library, on_gpu, wait_for
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY, Ranks
from .test_ranks import arrays, errands, parts

pytestmark = [
    pytest.mark.skipif(HAS_CARD or not EMULATED_LIBRARY.exists(), reason="the emulated GPU shows it"),
]


def order(block):
    """Of the latest kernel: w for words, h for one to the host, f for a release fence."""
    text = ctypes.create_string_buffer(400)
    ctypes.CDLL(str(EMULATED_LIBRARY)).ringreduce_emulated_order(block, text, ctypes.c_size_t(len(text)))
    return text.value.decode()


@pytest.mark.parametrize(
    ("kernel", "world", "wanted"),
    [
        # Without a peer, nobody waits long.
        ("direct", 1, ["fwhfwhhh", "fwfwh", "fwfwh"]),
        ("one_shot", 2, ["whhh", "wh", "h"]),
        ("two_shot", 2, ["whwhh", "h", "h"]),
    ],
)
def test_the_host_is_told_after_the_first_meeting_by_one_block(emulation, kernel, world, wanted):
    ranks = Ranks(emulation, world)
    spans = ranks.spans(arrays(world, 1000))
    ranks.launch(kernel, errands(ranks, "sum", spans, spans, parts(kernel, world, 1000, 4)))
    ranks.finish()
    assert [order(block) for block in range(3)] == wanted
    for span in spans:
        span.close()
    ranks.close()


def _to_itself(comm, found):
    stream = library().Stream()
    x = GpuArray(np.ones(100, "float32"))
    comm.send(x, 0, tag=None, stream=stream.handle.value)
    wait_for(stream.handle.value)
    found.append(order(0))
    comm.recv(x, 0, tag=None, stream=stream.handle.value)
    wait_for(stream.handle.value)
    stream.close()


def test_the_host_is_told_after_the_first_slice_of_a_message():
    found = []
    on_gpu(_to_itself, 1, found)
    assert found == ["wfwhhh"]


def _one_after_the_other(comm, has_launched):
    """The root's message nearly always lies there when the other rank begins."""
    x = GpuArray(np.full(100, comm.rank, "float32"))
    if comm.rank == 1:
        assert has_launched.wait(20)
    comm.broadcast(x, algorithm="direct")
    has_launched.set()
    assert (x.get(comm) == 0).all()


def test_the_host_is_told_after_the_first_slice_of_a_collective(few_blocks):
    seen = []
    while len(seen) < 10 and not (seen and seen[-1].startswith("wh")):
        on_gpu(_one_after_the_other, 2, threading.Event())
        seen.append(order(0).lstrip("f"))
    assert seen[-1].startswith("wh"), seen
