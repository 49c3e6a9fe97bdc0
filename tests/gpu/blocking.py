"""What blocks while a rank's kernel waits for a peer, and whether streams share queues. From the repository's root:

CUDA_DEVICE_MAX_CONNECTIONS=32 PYTHONPATH=. python3 -m tests.gpu.blocking [--emulated]

Another process does all this. If it hangs or dies, the row says so, and one more goes on with the next.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time

import numpy as np

from . import cuda_library
from .ranks import DoesNotFit, Ranks, emulated_library
from .test_ranks import arrays, errands, parts

LIMIT = 2.0  # seconds until a waiting kernel is given up
HANGS = 10.0  # seconds until a process is, which a start of CUDA is part of
BLOCKED = "**blocked until the abort**"
emulated = "--emulated" in sys.argv
lib = emulated_library() if emulated else cuda_library
NAMES = "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"
LARGE = 1 << 20 if emulated else 1 << 30  # the emulated GPU clears what it allocates


def row(name, took, outcome):
    print(f"| {name} | {took * 1e3:,.2f} | {outcome} |", flush=True)


def waiting(world=2):
    """All ranks but the first wait on the GPU, until close() or LIMIT. Returns close, and a stream of theirs."""
    ranks = Ranks(lib, world)
    spans = ranks.spans(arrays(world, 1000))
    ranks.launch("direct", errands(ranks, "sum", spans, spans, parts("direct", world, 1000, 4))[1:])
    time.sleep(0.05)
    ranks.ranks[0].choose()  # what follows is on the same device
    timer = threading.Timer(LIMIT, ranks.abort)
    timer.start()

    def close(beside=None):
        timer.cancel()
        ranks.abort()
        if beside:
            beside.join()
        ranks.finish()
        ranks.close()

    return close, ranks.ranks[1].stream


def probe(action, prepare=lambda: None, beside=None):
    """Times action(what was prepared) beside a kernel that waits, and beside a thread that calls beside(stream) with
    its stream. Streams end with it: queues are few."""
    prepared = prepare()
    close, stream = waiting()
    thread = threading.Thread(target=beside, args=(stream,)) if beside else None
    if thread:
        thread.start()
        time.sleep(0.05)
    start, problem = time.monotonic(), ""
    try:
        action(prepared)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    took = time.monotonic() - start
    close(thread)
    while streams:
        streams.pop().close()
    return took, problem or (BLOCKED if took > LIMIT / 2 else "at once")


def host_memory(_):
    at = ctypes.c_void_p()
    lib.call("allocate_on_host", ctypes.byref(at), ctypes.c_size_t(4096))


def fresh_kernel(dtype):
    """A reduce kernel that nothing has used yet: loaded while the other waits."""
    x = lib.Memory(4096)

    def run():
        lib.combine(dtype, "sum", [x.address], [x.address, x.address], 100)
        lib.synchronize()

    return run


def copy_down():
    x, data = lib.Memory(1 << 20), np.empty(1 << 20, np.uint8)

    def run():
        lib.move(data.ctypes.data, x.address, data.nbytes)
        lib.synchronize()

    return run


def copier(pinned):
    """What copies from the GPU behind the kernel that waits, as another rank's thread may."""
    x, data = lib.Memory(4096), np.empty(4096, np.uint8)
    at = ctypes.c_void_p(data.ctypes.data)
    if pinned:
        lib.call("allocate_on_host", ctypes.byref(at), ctypes.c_size_t(4096))

    def run(stream):
        lib.move(at.value, x.address, data.nbytes, stream)
        lib.synchronize(stream)

    return run


def launched_alone():
    """A kernel that nothing waits for, on a stream of its own."""
    stream, x = lib.Stream(), lib.Memory(4096)
    streams.append(stream)
    launch = lib.Launch(stream)

    def run():
        lib.combine("int16", "sum", [x.address], [x.address, x.address], 100, 1.0, launch)
        lib.synchronize(stream)

    run()
    return run


EXPORTER = """
import ctypes, sys
from tests.gpu import cuda_library
from tests.gpu.ranks import emulated_library

lib = emulated_library() if "--emulated" in sys.argv else cuda_library
memory, handle = lib.Memory(1 << 20), ctypes.create_string_buffer(88)
lib.call("share", handle, ctypes.c_void_p(memory.address))
print(handle.raw.hex(), flush=True)
sys.stdin.read()
"""


exporters, streams = [], []


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
    streams.append(stream)
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
    problems, start, begin = [], threading.Barrier(number, timeout=LIMIT), time.monotonic()

    def one():
        try:
            run = graph()
            for _ in range(30):
                start.wait()
                run()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            start.abort()

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begin, problems[0] if problems else "well"


def queues(world, depth=3):
    """Each rank launches several calls before the next rank launches its first, as eager ranks may."""
    begin = time.monotonic()
    try:
        ranks = Ranks(lib, world, blocks=1)
    except DoesNotFit as error:
        return 0, error
    spans = ranks.spans(arrays(world, 1000))
    made = errands(ranks, "sum", spans, spans, parts("direct", world, 1000, 4))
    timer = threading.Timer(LIMIT, ranks.abort)
    timer.start()
    for errand in made:
        ranks.launch("direct", [errand] * depth)
    ranks.finish()
    timer.cancel()
    done = [rank.done() for rank in ranks.ranks]
    ranks.close()
    return time.monotonic() - begin, "well" if set(done) == {depth} else f"**stuck**, calls done: {done}"


BESIDE_A_COPY = {  # what to do, and how to prepare it
    "launch": (lambda run: run(), launched_alone),
    "a stream": (lambda _: streams.append(lib.Stream()), lambda: None),
    "device memory": (lambda _: lib.Memory(64 << 10), lambda: None),
    "pinned host memory": (host_memory, lambda: None),
}
PROBES = {
    "captures side by side": captures_side_by_side,
    "device memory, 64 KiB": lambda: probe(lambda _: lib.Memory(64 << 10)),
    f"device memory, {LARGE >> 20:,} MiB": lambda: probe(lambda _: lib.Memory(LARGE)),
    "free device memory": lambda: probe(lambda x: x.close(), lambda: lib.Memory(1 << 20)),
    "pinned host memory": lambda: probe(host_memory),
    "a stream": lambda: probe(lambda _: streams.append(lib.Stream())),
    "map another process's memory": lambda: probe(map_memory, anothers_memory),
    "unmap it": lambda: probe(lambda at: lib.call("unmap", at), lambda: map_memory(anothers_memory())),
    "copy to pageable memory": lambda: probe(lambda run: run(), copy_down),
    "a kernel loaded for the first time": lambda: probe(lambda run: run(), lambda: fresh_kernel("float64")),
    "... and another": lambda: probe(lambda run: run(), lambda: fresh_kernel("bfloat16")),
    "capture, instantiate, launch": lambda: probe(lambda run: run(), graph),
    "launch": lambda: probe(lambda run: run(), launched_alone),
    **{
        f"{name}, beside a copy to {kind} memory behind the kernel": lambda how=how, kind=kind: probe(
            *how, copier(kind == "pinned")
        )
        for name, how in BESIDE_A_COPY.items()
        for kind in ("pinned", "pageable")
    },
    **{
        f"{world} ranks, 3 calls each, rank after rank": lambda world=world: queues(world)
        for world in (2, 4, 8, 12, 16)
    },
}


def run_from(first):
    """Prints what the card is, and then a row for each probe as it ends."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    fit = ctypes.c_int()
    lib.call("fit", ctypes.byref(fit))
    settings = ", ".join(f"{name} is {os.environ.get(name, 'not set')}" for name in NAMES)
    print(f"{lib.name_of_device()}; {fit.value} blocks fit; {settings}", flush=True)
    for name in list(PROBES)[first:]:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        row(name, *PROBES[name]())
    faulthandler.cancel_dump_traceback_later()


def main():
    if "--from" in sys.argv:
        return run_from(int(sys.argv[-1]))
    names = list(PROBES)
    while names:
        begin, first = time.monotonic(), len(PROBES) - len(names)
        child = subprocess.Popen([*sys.orig_argv, "--from", str(first)], stdout=subprocess.PIPE, text=True)
        print(child.stdout.readline() or sys.exit("no probe has begun"), end="", flush=True)
        if first == 0:
            print("\n| while a kernel waits | ms | |\n|---|--:|---|", flush=True)
        for line in child.stdout:
            print(line, end="", flush=True)
            names.pop(0)
            begin = time.monotonic()
        if child.wait() != 0 and names:
            row(names.pop(0), time.monotonic() - begin, f"**hangs or dies**, exit code {child.returncode}")


if __name__ == "__main__":
    main()
