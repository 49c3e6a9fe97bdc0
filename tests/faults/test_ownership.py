"""What the engine reads and writes stays until it is done, whatever becomes of the caller and of the handle."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

import ringreduce
from ringreduce.communicator.base import Base


class Tick(Exception):
    """What a signal handler raises."""


@pytest.fixture
def pair():
    a, b = ringreduce.local_group(2, timeout=20)
    with a, b:
        yield a, b


@pytest.fixture
def interrupted(monkeypatch):
    """Calls a function, in which a signal handler raises after the engine has got an asynchronous call."""

    def call(function, *args, **options):
        def submitted(*_, **__):
            raise Tick

        with monkeypatch.context() as patched, pytest.raises(Tick):
            patched.setattr(Base, "_work", submitted)
            function(*args, **options)

    return call


def as_numpy(x):
    return x


def as_tensor(x):
    return torch.from_numpy(x)


CALLS = {
    "recv": lambda comm, x: comm.recv(x, 1, async_op=True),
    "all_reduce": lambda comm, x: comm.all_reduce(x, async_op=True),
    "broadcast": lambda comm, x: comm.broadcast(x, 1, async_op=True),
    "all_gather": lambda comm, x: comm.all_gather(np.zeros(500), out=x, async_op=True),
    "all_to_all": lambda comm, x: comm.all_to_all(x, async_op=True, out=np.empty(1000)),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x, async_op=True),
}
PEERS = {
    "recv": lambda comm: comm.send(np.full(1000, 7.0), 0),
    "all_gather": lambda comm: comm.all_gather(np.full(500, 7.0)),
    "broadcast": lambda comm: comm.broadcast(np.full(1000, 7.0), 1),
}


@pytest.mark.parametrize("made", [as_numpy, as_tensor, memoryview])
@pytest.mark.parametrize("name", CALLS)
def test_an_array_lives_as_long_as_an_interrupted_call(pair, interrupted, name, made):
    a, b = pair
    x = np.zeros(1000)
    alive = weakref.ref(x)
    interrupted(CALLS[name], a, made(x))
    del x
    gc.collect()
    assert alive() is not None
    PEERS.get(name, lambda comm: getattr(comm, name)(np.full(1000, 7.0)))(b)
    a.barrier(async_op=True)  # the call before it ends, and lets the array go
    b.barrier()
    a.send(np.zeros(1), 0, async_op=True).wait()
    a.recv(np.zeros(1), 0, async_op=True).wait()
    gc.collect()
    assert alive() is None


def test_a_forgotten_handle(pair):
    a, b = pair
    x = np.zeros(1000)
    alive = weakref.ref(x)
    a.all_reduce(x, async_op=True)
    del x
    gc.collect()
    assert alive() is not None
    b.all_reduce(np.ones(1000))


def test_an_array_is_free_after_the_wait(pair):
    a, b = pair
    x = np.zeros(1000)
    alive = weakref.ref(x)
    work = a.all_reduce(x, async_op=True)
    b.all_reduce(np.ones(1000))
    work.wait()
    del x, work
    assert alive() is None


def test_arrays_are_free_after_the_group_has_failed(pair):
    a, b = pair
    x, y = np.zeros(1000), np.zeros(1000)
    alive = weakref.ref(x), weakref.ref(y)
    works = [a.all_reduce(x, async_op=True), a.recv(y, 1, async_op=True)]
    b._c.leave()
    for work in works:
        with pytest.raises(ringreduce.Error):
            work.wait()
    del x, y, work, works
    a.close()
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_memory_cannot_move_during_a_call(pair):
    a, b = pair
    x = bytearray(1000)
    work = a.recv(x, 1, async_op=True)
    with pytest.raises(BufferError):
        x.extend(bytes(100000))
    b.send(np.full(1000, 7, "uint8"), 0)
    work.wait()
    x.extend(b"end")
    assert x == b"\7" * 1000 + b"end"


def test_a_tensor_that_gets_other_memory_during_a_call(pair):
    a, b = pair
    memory = np.zeros(1000, "float32")
    alive = weakref.ref(memory)
    x = torch.from_numpy(memory)
    work = a.recv(x, 1, async_op=True)
    x.data = torch.zeros(1000)
    del memory
    gc.collect()
    assert alive() is not None and not alive().any()
    b.send(np.full(1000, 7, "float32"), 0)
    work.wait()
    assert not x.any()


def test_a_ctypes_array_during_an_interrupted_call(pair, interrupted):
    a, b = pair

    class Array(ctypes.c_double * 1000):
        pass

    x = Array()
    alive = weakref.ref(x)
    interrupted(a.recv, x, 1, async_op=True)
    del x
    gc.collect()
    b.send(np.full(1000, 7.0), 0)
    assert alive() is None or alive()[0] in (0, 7)


def test_a_communicator_lives_as_long_as_its_works():
    a, b = ringreduce.local_group(2, timeout=20)
    alive = weakref.ref(a)
    work = a.all_reduce(np.ones(3), async_op=True)
    del a
    gc.collect()
    b.all_reduce(np.ones(3))
    assert work.wait().tolist() == [2, 2, 2]
    del work
    gc.collect()
    assert alive() is None
    b.close()


PROGRAM = """
import os, random, signal, sys
import numpy as np, ringreduce

class Tick(Exception): pass

def handler(*_):
    if armed: raise Tick  # another thread may take a signal, and Python hears of it later

armed = False

signal.signal(signal.SIGALRM, handler)
comm, = ringreduce.local_group(1, timeout=20)
rng = random.Random(1)
{setup}
lost = 0
for k in range(100000):
    x = {array}
    work = None
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 60e-6))
        work = {call}
        armed = False
    except Tick:
        armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    if work is not None:
        {end}
        continue
    del x
    {fresh}
    lost += 1
    if lost == 100: break
assert lost == 100
assert not any({any} for y in fresh), "written by a call whose submission was interrupted"
print("ended")
"""
PROGRAMS = {
    "recv": {
        "setup": "fresh = []",
        "array": "np.zeros(1000)",
        "call": "comm.recv(x, 0, tag=k, async_op=True)",
        "end": "comm.send(x, 0, tag=k); work.wait()",
        "fresh": "fresh.append(np.zeros(1000)); comm.send(np.ones(1000), 0, tag=k)",
        "any": "y.any()",
    },
    "torch": {
        "setup": "import torch, torch.distributed as dist\nfresh = []\n"
        "dist.init_process_group('ringreduce', store=dist.HashStore(), rank=0, world_size=1)",
        "array": "torch.zeros(1000)",
        "call": "dist.all_reduce(x, async_op=True)",
        "end": "work.wait()",
        "fresh": "fresh.append(torch.zeros(1000))",
        "any": "y.any()",
    },
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_signals_while_calls_are_submitted(name):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(**PROGRAMS[name])],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
