"""What blocks while a rank's kernel waits for a peer, and whether streams share queues. From the repository's root:

CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONPATH=. python3 -m tests.gpu.blocking [--emulated]
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np

from ringreduce.cuda import cuda_library

from .ranks import DoesNotFit, Ranks, emulated_library
from .test_ranks import arrays, errands, parts

LIMIT = 2.0  # seconds until a waiting kernel is given up
BLOCKED = "**blocked until the abort**"
emulated = "--emulated" in sys.argv
lib = emulated_library() if emulated else cuda_library
LARGE = 1 << 20 if emulated else 1 << 30  # the emulated GPU clears what it allocates


def row(name, took, outcome):
    print(f"| {name} | {took * 1e3:,.2f} | {outcome} |", flush=True)


def waiting(world=2):
    """All ranks but the first wait on the GPU, until close() or LIMIT."""
    ranks = Ranks(lib, world)
    spans = ranks.spans(arrays(world, 1000))
    ranks.launch("direct", errands(ranks, "sum", spans, spans, parts("direct", world, 1000, 4))[1:])
    time.sleep(0.05)
    ranks.ranks[0].choose()  # what follows is on the same device
    timer = threading.Timer(LIMIT, ranks.abort)
    timer.start()

    def close():
        timer.cancel()
        ranks.abort()
        ranks.finish()
        ranks.close()

    return close


def probe(name, action, prepare=lambda: None):
    """Times action(what was prepared) beside a kernel that waits."""
    prepared = prepare()
    close = waiting()
    start, problem = time.monotonic(), ""
    try:
        action(prepared)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    took = time.monotonic() - start
    close()
    row(name, took, problem or (BLOCKED if took > LIMIT / 2 else "at once"))


def host_memory(_):
    at = ctypes.c_void_p()
    lib.call("allocate_on_host", ctypes.byref(at), ctypes.c_size_t(4096))


def fresh_kernel(dtype):
    """A reduce kernel that nothing has used yet: loaded while the other waits."""
    stream, x = lib.Stream(), lib.Memory(4096)

    def run():
        lib.combine(dtype, "sum", [x.address], [x.address, x.address], 100, 1.0, lib.Launch(stream))
        lib.synchronize(stream)

    return run


def copy_down():
    x, data = lib.Memory(1 << 20), np.empty(1 << 20, np.uint8)

    def run():
        lib.move(data.ctypes.data, x.address, data.nbytes)
        lib.synchronize()

    return run


EXPORTER = """
import ctypes, sys
from ringreduce.cuda import cuda_library
from tests.gpu.ranks import emulated_library

lib = emulated_library() if "--emulated" in sys.argv else cuda_library
memory, handle = lib.Memory(1 << 20), ctypes.create_string_buffer(88)
lib.call("share", handle, ctypes.c_void_p(memory.address))
print(handle.raw.hex(), flush=True)
sys.stdin.read()
"""


exporters = []


def anothers_memory():
    """A handle of it; the other process ends with this one."""
    program = [sys.executable, "-c", EXPORTER, *sys.argv[1:]]
    exporters.append(subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    return bytes.fromhex(exporters[-1].stdout.readline())


def map_memory(handle):
    at = ctypes.c_void_p()
    lib.call("map", ctypes.byref(at), handle, 1)
    return at


def graph():
    stream, x = lib.Stream(), lib.Memory(4096)
    launch = lib.Launch(stream)
    lib.combine("int16", "sum", [x.address], [x.address, x.address], 100, 1.0, launch)
    lib.synchronize(stream)

    def run():
        with lib.captured(stream) as made:
            lib.combine("int16", "sum", [x.address], [x.address, x.address], 100, 1.0, launch)
        made.launch(stream)
        lib.synchronize(stream)

    return run


def captures_side_by_side(number=3):
    """Each thread captures, instantiates and goes on."""
    problems, start, begin = [], threading.Barrier(number), time.monotonic()

    def one():
        try:
            run = graph()
            for _ in range(30):
                start.wait(10)
                run()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            start.abort()

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row("captures side by side", time.monotonic() - begin, problems[0] if problems else "well")


def queues(world, depth=3):
    """Each rank launches several calls before the next rank launches its first, as eager ranks may."""
    name, begin = f"{world} ranks, {depth} calls each, rank after rank", time.monotonic()
    try:
        ranks = Ranks(lib, world, blocks=1)
    except DoesNotFit as error:
        return row(name, 0, error)
    spans = ranks.spans(arrays(world, 1000))
    made = errands(ranks, "sum", spans, spans, parts("direct", world, 1000, 4))
    timer = threading.Timer(LIMIT, ranks.abort)
    timer.start()
    for errand in made:
        ranks.launch("direct", [errand] * depth)
    ranks.finish()
    timer.cancel()
    done = [rank.done() for rank in ranks.ranks]
    row(name, time.monotonic() - begin, "well" if set(done) == {depth} else f"**stuck**, calls done: {done}")
    ranks.close()


def main():
    fit = ctypes.c_int()
    lib.call("fit", ctypes.byref(fit))
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "not set")
    print(f"{lib.name_of_device()}; {fit.value} blocks fit; CUDA_DEVICE_MAX_CONNECTIONS is {connections}\n")
    print("| while a kernel waits | ms | |\n|---|--:|---|", flush=True)
    captures_side_by_side()
    probe("device memory, 64 KiB", lambda _: lib.Memory(64 << 10))
    probe(f"device memory, {LARGE >> 20:,} MiB", lambda _: lib.Memory(LARGE))
    probe("free device memory", lambda x: x.close(), lambda: lib.Memory(1 << 20))
    probe("pinned host memory", host_memory)
    probe("a stream", lambda _: lib.Stream())
    probe("map another process's memory", map_memory, anothers_memory)
    probe("unmap it", lambda at: lib.call("unmap", at), lambda: map_memory(anothers_memory()))
    probe("copy to pageable memory", lambda run: run(), copy_down)
    probe("a kernel loaded for the first time", lambda run: run(), lambda: fresh_kernel("float64"))
    probe("... and another", lambda run: run(), lambda: fresh_kernel("bfloat16"))
    probe("capture, instantiate, launch", lambda run: run(), graph)
    for world in (2, 4, 8, 12, 16):
        queues(world)


if __name__ == "__main__":
    main()
