"""What only a card can show: streams, graphs, large spans, CUDA's own errors."""

import time

import numpy as np
import pytest

from tests.engine.reduce.wire_oracle import decode, encode

from . import cuda_library
from .cuda_library import Coded, Event, Launch, Memory, Stream, captured
from .probe import HAS_CARD, WHY_NOT

if not HAS_CARD:
    pytest.skip(f"nothing has run on a GPU: {WHY_NOT}", allow_module_level=True)


@pytest.fixture
def stream():
    created = Stream()
    yield created
    created.close()


@pytest.fixture
def memories():
    """Memories that end with the test."""
    made = []

    def make(count, data=None):
        made.append(Memory(count * 4))
        if data is not None:
            made[-1].put(data)
        return made[-1]

    yield make
    for memory in made:
        memory.close()


def test_a_card_is_there():
    print(cuda_library.name_of_device())
    assert cuda_library.count_devices() > 0


def test_a_stream_is_kept_in_order(stream, memories):
    """Each launch takes up what the one before it has left."""
    count = 3_000_017
    values = np.arange(count, dtype=np.float32) % 8
    x, y = memories(count, values), memories(count)
    launch = Launch(stream)
    for _ in range(6):
        cuda_library.combine("float32", "sum", [y.address], [x.address, x.address], count, 1.0, launch)
        cuda_library.copy([x.address], y.address, x.size, launch)
    cuda_library.synchronize(stream)
    assert (x.get().view(np.float32) == values * 64).all()


def test_calls_can_be_captured(stream, memories):
    count = 10_007
    values = np.arange(count, dtype=np.float32) % 8
    x, y, message = memories(count, values), memories(count), memories(count)
    coded = Coded("int8", "float32", "sum", destinations=[0])
    launch = Launch(stream)
    with captured(stream) as graph:
        cuda_library.combine("float32", "sum", [y.address], [x.address, x.address], count, 1.0, launch)
        cuda_library.combine_coded(coded, [message.address], [y.address], count, 1.0, launch)
        cuda_library.copy([x.address], y.address, x.size, launch)
    assert (x.get().view(np.float32) == values).all()  # nothing has run yet
    for times in (2, 4, 8):
        graph.launch(stream)
        cuda_library.synchronize(stream)
        assert (x.get().view(np.float32) == values * times).all()
    wanted = encode("int8", values * 8)
    assert (message.get()[: wanted.size] == wanted).all()
    graph.close()


def test_more_than_4_GiB(memories):
    """Offsets beyond 32 bits: the bytes at both ends and in the middle."""
    count = (1 << 30) + 4099
    x, y = memories(count), memories(count)
    x.fill(0)
    y.fill(0xFF)
    places = [0, 4, (1 << 30) - 4, 1 << 30, 2 << 30, (4 << 30) - 4, 4 << 30, 4 * count - 4]
    for number, place in enumerate(places):
        x.put(np.array([number + 1], np.float32), place)
    cuda_library.combine("float32", "sum", [y.address], [x.address, x.address], count)
    for number, place in enumerate(places):
        value = np.zeros(1, np.float32)
        cuda_library.move(value.ctypes.data, y.address + place, 4)
        cuda_library.synchronize()
        assert value[0] == 2 * (number + 1), place


def test_large_and_encoded(memories):
    count = 5_000_011
    values = np.random.default_rng(31).standard_normal(count).astype(np.float32)
    x, message, back = memories(count, values), memories(count), memories(count)
    cuda_library.combine_coded(
        Coded("int8", "float32", "sum", destinations=[0]), [message.address], [x.address], count
    )
    cuda_library.combine_coded(
        Coded("int8", "float32", "sum", sources=[0]), [back.address], [message.address], count
    )
    wanted = encode("int8", values)
    assert (message.get()[: wanted.size] == wanted).all()
    assert (back.get().view(np.float32) == decode("int8", wanted, count)).all()


def test_events_measure(stream, memories):
    x, y = memories(1 << 26), memories(1 << 26)
    begin, end, start = Event(), Event(), time.monotonic()
    begin.record(stream)
    cuda_library.copy([y.address], x.address, x.size, Launch(stream))
    end.record(stream)
    cuda_library.synchronize(stream)
    assert 0 < begin.seconds_until(end) < time.monotonic() - start
    begin.close()
    end.close()


def test_errors_are_named_and_forgotten(memories):
    with pytest.raises(RuntimeError, match=r"memory: cudaErrorMemoryAllocation \("):
        Memory(1 << 60)
    x = memories(16)  # the next calls do not find that error
    cuda_library.combine("float32", "sum", [x.address], [x.address] * 2, 16)
    cuda_library.synchronize()
