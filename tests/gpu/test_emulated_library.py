"""The library that emulates libringreduce_cuda.so does as CUDA does, so that tests of host code can rely on it."""

import ctypes
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from .gpu_arrays import nothing_stays_open
from .ranks import EMULATED_LIBRARY, Ranks, Span, wait_until

ROOT = Path(__file__).resolve().parents[2]
HEADERS = [
    "csrc/gpu/device/cuda/entry_points.h",
    "csrc/gpu/kernels/cuda/entry_points.h",
    "csrc/gpu/reduce/entry_points.h",
]
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # as cudaStreamCaptureMode has it


@pytest.fixture
def cuda(emulation):
    yield emulation
    emulation.call("choose_device", 0)


@pytest.fixture
def stream(cuda):
    made = cuda.Stream()
    yield made
    made.close()


class Busy:
    """A stream that is busy until it is let go: half of a collective waits there for the other half."""

    def __init__(self, cuda):
        self.ranks = Ranks(cuda, 2, blocks=1)
        self.spans = self.ranks.spans([np.ones(4, "int32")] * 2)
        self.errands = [self.ranks.errand(r, "sum", self.spans[r], self.spans[r]) for r in range(2)]
        self.ranks.launch("one_shot", self.errands[:1])
        self.ranks.ranks[0].choose()
        self.stream = self.ranks.ranks[0].stream

    def let_go(self):
        self.ranks.launch("one_shot", self.errands[1:])
        self.ranks.ranks[0].choose()

    def close(self):
        self.ranks.finish()
        for span in self.spans:
            span.close()
        self.ranks.close()


@pytest.fixture
def busy(cuda):
    made = Busy(cuda)
    yield made
    made.close()


def fill(cuda, memory, byte, stream):
    cuda.call("fill", ctypes.c_void_p(memory.address), byte, ctypes.c_size_t(memory.size), stream.handle)


def peek(memory, size=1):
    """What is there now, whatever streams have still to do."""
    return ctypes.string_at(memory.address, size)


def device_of(cuda, address):
    device = ctypes.c_int()
    cuda.call("device_of", ctypes.byref(device), ctypes.c_void_p(address))
    return device.value


def test_it_exports_what_the_headers_say_and_no_more(cuda):
    declared = set()
    for header in HEADERS:
        declared |= set(re.findall(r"\bringreduce_cuda_\w+", (ROOT / header).read_text()))
    listed = subprocess.run(["nm", "-D", "--defined-only", EMULATED_LIBRARY], capture_output=True, check=True)
    exported = {line.split()[-1] for line in listed.stdout.decode().splitlines()}
    # Which the emulated NCCL and tests need.
    own = {"put", "has_context", "allocate_apart", "attributes", "order", "largest_kernel", "priority"}
    assert exported == declared | {f"ringreduce_emulated_{name}" for name in own}


# --- devices -----------------------------------------------------------------------------------------------


def test_devices_are_distinct_and_each_thread_chooses(cuda):
    assert cuda.count_devices() == 2
    identities = [ctypes.create_string_buffer(16) for _ in range(2)]
    for device, identity in enumerate(identities):
        cuda.call("identify_device", identity, device)
    assert identities[0].raw != identities[1].raw
    cuda.call("choose_device", 1)
    seen = ctypes.c_int(-1)
    other = threading.Thread(target=lambda: cuda.call("current_device", ctypes.byref(seen)))
    other.start()
    other.join()
    assert seen.value == 0
    with pytest.raises(RuntimeError, match="device 2: there are 2"):
        cuda.call("choose_device", 2)


def test_a_stream_is_its_devices(cuda, stream):
    memory = cuda.Memory(16)
    cuda.call("choose_device", 1)
    with pytest.raises(RuntimeError, match="the stream is device 0's, the current device is 1"):
        cuda.copy([memory.address], memory.address, 16, cuda.Launch(stream))
    event = cuda.Event()
    with pytest.raises(RuntimeError, match="another device's stream"):
        event.record(stream)
    event.close()
    memory.close()


def test_kernels_do_not_reach_the_hosts_own_memory(cuda):
    ranks = Ranks(cuda, 1)
    span = Span(cuda, np.zeros(4, "int32"))
    errand = ranks.errand(0, "sum", span, span)
    errand.output = np.zeros(4, "int32").ctypes.data
    with pytest.raises(RuntimeError, match="the output is no memory that kernels reach"):
        ranks.launch("direct", [errand])
    span.close()
    ranks.close()


def test_what_has_no_kernel_is_refused_at_once(cuda):
    memory = cuda.Memory(16)
    with pytest.raises(RuntimeError, match="band is not defined for dtype float32"):
        cuda.combine("float32", "band", [memory.address], [memory.address], 4)
    memory.close()


def test_a_fault_is_told_to_who_synchronizes_next(cuda):
    ranks = Ranks(cuda, 2, blocks=2)
    spans = ranks.spans([np.ones(4, "int32")] * 2)
    errand = ranks.errand(0, "sum", spans[0], spans[0])
    errand.boxes.blocks = 1
    errand.memories[1] += 8
    ranks.launch("one_shot", [errand])
    with pytest.raises(RuntimeError, match="waiting for the stream: misaligned access of 16 bytes"):
        ranks.finish()
    ranks.finish()
    for span in spans:
        span.close()
    ranks.close()


# --- memory ------------------------------------------------------------------------------------------------


def test_memory_is_aligned_and_not_cleared(cuda):
    memory = cuda.Memory(1000)
    assert memory.address % 256 == 0
    assert (memory.get() == 0xA5).all()
    memory.close()
    with pytest.raises(RuntimeError, match="begins there"):
        memory.close()
    with pytest.raises(RuntimeError, match="memory: "):
        cuda.Memory(1 << 60)


def test_it_knows_whose_memory_it_is(cuda):
    cuda.call("choose_device", 1)
    memory = cuda.Memory(1000)
    cuda.call("choose_device", 0)
    assert [device_of(cuda, memory.address + at) for at in (-1, 0, 999, 1000)] == [-1, 1, 1, -1]
    assert device_of(cuda, np.zeros(10).ctypes.data) == -1
    host = ctypes.c_void_p()
    cuda.call("allocate_on_host", ctypes.byref(host), ctypes.c_size_t(100))
    assert device_of(cuda, host.value) == -1
    assert ctypes.string_at(host, 100) == bytes(100)
    cuda.call("free_on_host", host)
    memory.close()


CHILD = """
import ctypes, sys
from tests.gpu.ranks import emulated_library
cuda = emulated_library()
handle = bytes.fromhex(sys.argv[1])
places = [ctypes.c_void_p(), ctypes.c_void_p()]
for place in places:
    cuda.call("map", ctypes.byref(place), handle, 1)
assert places[0].value == places[1].value
device = ctypes.c_int()
cuda.call("device_of", ctypes.byref(device), ctypes.c_void_p(places[0].value + 5))
cuda.call("fill", places[0], 0x11, ctypes.c_size_t(100), cuda.handle(None))
cuda.synchronize()
for place in places:
    cuda.call("unmap", place)
print(device.value)
"""


def in_another_process(handle):
    command = [sys.executable, "-c", CHILD, handle.raw.hex()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_another_process_maps_memory(cuda):
    cuda.call("choose_device", 1)
    memory = cuda.Memory(1000)
    handle = ctypes.create_string_buffer(88)
    cuda.call("share", handle, ctypes.c_void_p(memory.address))
    with pytest.raises(RuntimeError, match="this process has made it"):
        cuda.call("map", ctypes.byref(ctypes.c_void_p()), handle, 1)
    child = in_another_process(handle)
    assert (child.returncode, child.stdout) == (0, "1\n"), child.stderr
    assert (memory.get() == np.repeat([0x11, 0xA5], [100, 900])).all()
    memory.close()
    # The file's number is free, or some other file's by now.
    error = in_another_process(handle).stderr
    assert re.search(r"taking a file from process \d+: Bad file descriptor|mapping shared memory: ", error), (
        error
    )


# --- streams and events ------------------------------------------------------------------------------------


def test_a_stream_does_one_after_the_other_and_nobody_waits(cuda, busy):
    memory = cuda.Memory(1 << 16)
    for byte in range(1, 20):
        fill(cuda, memory, byte, busy.stream)
    time.sleep(0.02)
    assert peek(memory) == b"\xa5"
    busy.let_go()
    cuda.synchronize(busy.stream)
    assert (memory.get() == 19).all()
    memory.close()


def test_what_comes_from_the_host_is_read_at_once(cuda, busy):
    memory, data = cuda.Memory(8), np.arange(8, dtype=np.uint8)
    cuda.move(memory.address, data.ctypes.data, 8, busy.stream)
    data[:] = 9
    busy.let_go()
    cuda.synchronize(busy.stream)
    assert (memory.get() == np.arange(8)).all()
    memory.close()


@pytest.mark.parametrize("outwards", [False, True], ids=["much from", "to"])
def test_a_copy_returns_late_where_the_hosts_memory_is_not_pinned(cuda, busy, outwards):
    memory, data = cuda.Memory(100_000), np.zeros(100_000, np.uint8)
    ends = (data.ctypes.data, memory.address) if outwards else (memory.address, data.ctypes.data)
    copying = threading.Thread(target=lambda: cuda.move(*ends, 1 if outwards else data.nbytes, busy.stream))
    copying.start()
    copying.join(0.05)
    assert copying.is_alive()
    busy.let_go()
    copying.join(20)
    assert not copying.is_alive()
    cuda.synchronize(busy.stream)
    memory.close()


def test_a_stream_waits_for_what_was_recorded(cuda, busy, stream):
    memory, event = cuda.Memory(1), cuda.Event()
    event.record(busy.stream)
    cuda.call("wait", event.handle, stream.handle)
    fill(cuda, memory, 1, stream)
    time.sleep(0.02)
    assert peek(memory) == b"\xa5"
    with pytest.raises(RuntimeError, match="still to come"):
        event.seconds_until(event)
    busy.let_go()
    cuda.synchronize(stream)
    assert peek(memory) == b"\x01"
    memory.close()
    event.close()


def test_only_the_moment_that_was_recorded_is_waited_for(cuda, busy, stream):
    event = cuda.Event()
    cuda.call("wait", event.handle, stream.handle)
    cuda.synchronize(stream)  # it was never recorded
    with pytest.raises(RuntimeError, match="not been recorded"):
        event.seconds_until(event)
    event.record(stream)
    cuda.call("wait", event.handle, stream.handle)
    event.record(busy.stream)
    cuda.synchronize(stream)  # for the stream's own moment, not for the other's
    busy.let_go()
    event.close()


LEGACY, ALSO_LEGACY, PER_THREAD = (SimpleNamespace(handle=ctypes.c_void_p(number)) for number in range(3))


def let_wait_for_busy(cuda, busy, stream):
    event = cuda.Event()
    event.record(busy.stream)
    cuda.call("wait", event.handle, stream.handle)
    event.close()


def test_each_thread_has_a_default_stream_of_its_own(cuda, busy):
    memory = cuda.Memory(1)
    let_wait_for_busy(cuda, busy, PER_THREAD)
    fill(cuda, memory, 1, PER_THREAD)
    run_in_thread(lambda: [fill(cuda, memory, 2, PER_THREAD), cuda.synchronize(PER_THREAD)])
    assert peek(memory) == b"\x02"
    busy.let_go()
    cuda.synchronize(PER_THREAD)
    assert peek(memory) == b"\x01"
    memory.close()


@pytest.mark.parametrize("default", [LEGACY, ALSO_LEGACY], ids=["0", "cudaStreamLegacy"])
def test_the_legacy_default_stream_waits_for_threads_own_and_they_for_it(cuda, busy, stream, default):
    memory = [cuda.Memory(1) for _ in range(4)]
    let_wait_for_busy(cuda, busy, PER_THREAD)
    fill(cuda, memory[0], 1, default)
    run_in_thread(lambda: fill(cuda, memory[1], 1, PER_THREAD))
    fill(cuda, memory[2], 1, stream)
    cuda.synchronize(stream)  # it is non-blocking
    cuda.call("choose_device", 1)
    cuda.synchronize(LEGACY)  # another device's
    cuda.call("choose_device", 0)
    time.sleep(0.02)
    assert [peek(one) for one in memory] == [b"\xa5", b"\xa5", b"\x01", b"\xa5"]
    busy.let_go()
    fill(cuda, memory[3], 1, PER_THREAD)
    cuda.synchronize(PER_THREAD)
    assert [peek(memory[at]) for at in (0, 3)] == [b"\x01", b"\x01"]
    cuda.call("free", ctypes.c_void_p(cuda.Memory(1).address))  # waits for the device
    assert peek(memory[1]) == b"\x01"
    for one in memory:
        one.close()


def test_a_copy_waits_for_a_kernel_that_waits_for_a_peer(cuda, busy):
    """Whoever launches the peer's kernel after such a copy waits for ever."""
    memory = cuda.Memory(1)
    let_wait_for_busy(cuda, busy, PER_THREAD)
    copy = lambda: cuda.move(memory.address, memory.address, 1, LEGACY) or cuda.synchronize(LEGACY)  # noqa: E731
    copying = [threading.Thread(target=target) for target in (copy, lambda: cuda.synchronize(LEGACY))]
    for thread in copying:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    busy.let_go()
    for thread in copying:
        thread.join(20)
        assert not thread.is_alive()
    memory.close()


def test_events_that_only_order_do_not_measure(cuda, stream):
    event, handle = cuda.Event(), ctypes.c_void_p()
    cuda.call("create_event", ctypes.byref(handle), 0)
    for one in (event.handle, handle):
        cuda.call("record", one, stream.handle)
    cuda.synchronize(stream)
    with pytest.raises(RuntimeError, match="created without timing"):
        cuda.call("elapsed", ctypes.byref(ctypes.c_float()), event.handle, handle)
    cuda.call("destroy_event", handle)
    event.close()


def test_events_measure(cuda, busy):
    begin, end = cuda.Event(), cuda.Event()
    other = cuda.Stream()
    begin.record(other)
    cuda.synchronize(other)
    end.record(busy.stream)
    time.sleep(0.05)
    busy.let_go()
    cuda.synchronize(busy.stream)
    assert 0.05 <= begin.seconds_until(end) < 5
    for one in (begin, end, other):
        one.close()


def test_destroyed_streams_finish_what_they_have(cuda, busy):
    memory, stream, event = cuda.Memory(1), cuda.Stream(), cuda.Event()
    event.record(busy.stream)
    cuda.call("wait", event.handle, stream.handle)
    fill(cuda, memory, 1, stream)
    stream.close()
    event.close()
    with pytest.raises(RuntimeError, match="there is no such stream"):
        cuda.synchronize(stream)
    busy.let_go()
    cuda.call("free", ctypes.c_void_p(cuda.Memory(1).address))  # waits for the device
    assert peek(memory) == b"\x01"
    memory.close()


def test_a_test_that_leaves_a_stream_open_fails(cuda):
    with pytest.raises(AssertionError, match="left 1 streams open"), nothing_stays_open():
        left = cuda.Stream()
    with pytest.raises(RuntimeError, match="there is no such stream"):
        left.close()


def test_kernels_that_wait_for_each_other_divide_shared_memory_alike(cuda, monkeypatch):
    """On a device where nobody has asked how many fit, which divides it."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_DEVICES", "5")
    ranks = Ranks(cuda, 1)
    span = Span(cuda, np.zeros(4, "int32"))
    errand = ranks.errand(0, "sum", span, span)
    cuda.call("choose_device", 4)
    elsewhere = cuda.Stream()
    run = lambda: cuda.call("run", ctypes.byref(errand), elsewhere.handle)  # noqa: E731
    with pytest.raises(RuntimeError, match="must divide shared memory alike"):
        run()
    cuda.call("fit", ctypes.byref(ctypes.c_int()))
    with pytest.raises(RuntimeError, match="the program is no memory that kernels reach"):
        run()
    elsewhere.close()
    cuda.call("choose_device", 0)
    span.close()
    ranks.close()


def test_more_blocks_than_fit_wait_for_ever(cuda, monkeypatch):
    """As they do on a card: until they are given up."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_DEVICES", "1")
    ranks = Ranks(cuda, 2, blocks=3)
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "3")
    spans = ranks.spans([np.ones(20_000, "int32")] * 2)
    ranks.launch("one_shot", [ranks.errand(r, "sum", spans[r], spans[r]) for r in range(2)])
    wait_until(lambda: any(rank.report.contents.begun for rank in ranks.ranks))
    time.sleep(0.02)
    assert sorted(rank.report.contents.begun for rank in ranks.ranks) == [0, 1]
    ranks.abort()
    ranks.finish()
    assert all(rank.report.contents.begun == 1 for rank in ranks.ranks)
    assert all(rank.done() == 0 for rank in ranks.ranks)
    for span in spans:
        span.close()
    ranks.close()


# --- graphs ------------------------------------------------------------------------------------------------


def exchange_mode(cuda, mode):
    was = ctypes.c_int(mode)
    cuda.call("exchange_capture_mode", ctypes.byref(was))
    return was.value


def is_captured(cuda, stream):
    answer = ctypes.c_int(-1)
    cuda.call("is_captured", ctypes.byref(answer), stream.handle)
    return answer.value == 1


def test_a_capture_runs_nothing(cuda, stream):
    memory = cuda.Memory(1)
    with cuda.captured(stream) as graph:
        assert is_captured(cuda, stream)
        fill(cuda, memory, 1, stream)
        fill(cuda, memory, 2, stream)
        with pytest.raises(RuntimeError, match="does nothing to wait for"):
            cuda.synchronize(stream)
    assert not is_captured(cuda, stream)
    assert memory.get() == [0xA5]
    for _ in range(2):
        memory.fill(3)
        graph.launch(stream)
        cuda.synchronize(stream)
        assert memory.get() == [2]
    graph.close()
    memory.close()


def test_a_capture_forbids_what_could_wait_for_the_device(cuda, stream):
    memory, other, event = cuda.Memory(1), cuda.Stream(), cuda.Event()
    forbidden = [
        lambda: cuda.Memory(1),
        memory.close,
        lambda: cuda.call("allocate_on_host", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)),
        lambda: cuda.call("is_over", ctypes.byref(ctypes.c_int()), event.handle),
        lambda: cuda.synchronize(other),
        lambda: cuda.call("fit", ctypes.byref(ctypes.c_int())),
    ]
    failures = []

    def call_all():
        for forbidden_call in forbidden:
            with pytest.raises(RuntimeError, match="not while a stream is being captured") as caught:
                forbidden_call()
            failures.append(caught)

    for run in (call_all, lambda: run_in_thread(call_all)):
        cuda.call("begin_capture", stream.handle, GLOBAL)
        run()
        with pytest.raises(RuntimeError, match="a forbidden call has spoilt it"):
            cuda.call("end_capture", ctypes.byref(ctypes.c_void_p()), stream.handle)
    assert len(failures) == 12
    with cuda.captured(stream, GLOBAL) as graph:
        assert exchange_mode(cuda, RELAXED) == 0
        cuda.Memory(1).close()
        assert exchange_mode(cuda, 0) == RELAXED
    for one in (graph, event, other, memory):
        one.close()


def test_a_thread_local_capture_forbids_nothing_to_other_threads(cuda, stream):
    allocated = []
    with cuda.captured(stream, THREAD_LOCAL) as graph:
        run_in_thread(lambda: allocated.append(cuda.Memory(1)))
    with pytest.raises(RuntimeError, match="spoilt"), cuda.captured(stream, THREAD_LOCAL):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="not while a stream is being captured"):
            cuda.Memory(1)
    for one in (graph, *allocated):
        one.close()
    assert allocated


def test_a_captured_event_cannot_be_asked_whether_it_is_over(cuda, stream):
    event = cuda.Event()
    with cuda.captured(stream) as graph:
        event.record(stream)
    with pytest.raises(RuntimeError, match="recorded in a capture"):
        cuda.call("is_over", ctypes.byref(ctypes.c_int()), event.handle)
    graph.close()
    event.close()


def run_in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_events_bring_streams_into_a_capture(cuda, stream):
    other, memory = cuda.Stream(), cuda.Memory(1)
    fork, join, before = cuda.Event(), cuda.Event(), cuda.Event()
    before.record(stream)
    with cuda.captured(stream) as graph:
        with pytest.raises(RuntimeError, match="before the capture"):
            cuda.call("wait", before.handle, stream.handle)
        fork.record(stream)
        cuda.call("wait", fork.handle, other.handle)
        assert is_captured(cuda, other)
        fill(cuda, memory, 1, other)
        join.record(other)
        cuda.call("wait", join.handle, stream.handle)
        fill(cuda, memory, 2, stream)
    assert not is_captured(cuda, other)
    assert memory.get() == [0xA5]
    graph.launch(stream)
    cuda.synchronize(stream)
    assert memory.get() == [2]
    with pytest.raises(RuntimeError, match="a capture, which has ended"):
        cuda.call("wait", join.handle, stream.handle)
    for one in (other, fork, join, before, graph, memory):
        one.close()


def test_a_graph_holds_objects_until_its_last_replay_is_over(cuda, busy, stream):
    dropped = []
    drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(dropped.append)
    with pytest.raises(RuntimeError, match="not being captured"):
        cuda.call("hold_in_graph", stream.handle, ctypes.c_void_p(7), drop)
    with cuda.captured(stream) as graph:
        cuda.call("hold_in_graph", stream.handle, ctypes.c_void_p(7), drop)
    event = cuda.Event()
    event.record(busy.stream)
    cuda.call("wait", event.handle, stream.handle)
    graph.launch(stream)
    graph.close()
    assert not dropped
    busy.let_go()
    cuda.synchronize(stream)
    assert dropped == [7]
    event.close()


def test_the_legacy_default_stream_stays_out_of_captures(cuda, stream):
    event = cuda.Event()
    with pytest.raises(RuntimeError, match="legacy default stream cannot be captured"):
        cuda.call("begin_capture", None, GLOBAL)
    with cuda.captured(stream, GLOBAL) as graph:
        event.record(stream)
        with pytest.raises(RuntimeError, match="legacy default stream cannot be captured"):
            cuda.call("wait", event.handle, None)
    graph.close()
    event.close()


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_the_legacy_default_stream_spoils_captures_of_blocking_streams(cuda, stream, mode):
    """But not of others, where it would wait for nothing."""
    memory = cuda.Memory(1)
    with pytest.raises(RuntimeError, match="spoilt"), cuda.captured(PER_THREAD, mode):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="would wait for a blocking stream that is being captured"):
            fill(cuda, memory, 1, LEGACY)
    with cuda.captured(stream, mode) as graph:
        fill(cuda, memory, 2, LEGACY)
    cuda.synchronize(LEGACY)
    assert memory.get() == [2]
    graph.close()
    memory.close()
