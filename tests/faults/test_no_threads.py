"""Limits on the number of threads: a call that needs one raises, and everything else goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import slowly
from tests.processes import python

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for a limit that binds root as well"),
]

LIMIT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int threads_left = -1;  /* as many as there are */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) threads_left--;
  return real(thread, attr, start, argument);
}
"""
HEAD = """
import ctypes, os, sys, threading
import numpy as np
import pytest
import ringreduce
left = ctypes.c_int.in_dll(ctypes.CDLL(None), "threads_left")
NO_THREAD = "cannot start a thread: .*ulimit -u"
def ones(n=3): return np.ones(n)
"""
PROGRAMS = {
    "collectives": """
comm, = ringreduce.local_group(1, timeout=20)
left.value = 0
for _ in range(2):
    with pytest.raises(ringreduce.Error, match=NO_THREAD):
        comm.all_reduce(ones(), async_op=True)
    assert comm.all_reduce(ones()).tolist() == [1, 1, 1]
    comm.barrier()
assert comm.all_gather_object("x") == ["x"]
assert comm.split(0).size == 1
left.value = -1
assert comm.all_reduce(ones(), async_op=True).wait().tolist() == [1, 1, 1]
comm.close()
""",
    "messages": """
comm, = ringreduce.local_group(1, timeout=20)
left.value = 0
with pytest.raises(ringreduce.Error, match=NO_THREAD):
    comm.recv(np.zeros(3), 0, async_op=True)
comm.send(ones(), 0, async_op=True).wait()  # small enough to need no thread
got = comm.recv(np.zeros(3), 0)  # of the message, which no other call has taken
assert got.tolist() == [1, 1, 1]
left.value = -1
work = comm.recv(np.zeros(3), 0, async_op=True)
comm.send(ones(), 0)
assert work.wait().tolist() == [1, 1, 1]
comm.close()
""",
    "two ranks": """
pid = os.fork()
rank = int(pid == 0)
with ringreduce.init(rank, 2, sys.argv[1], transport="shm", timeout=20) as comm:
    left.value = 0
    for call in (comm.send, comm.recv):
        with pytest.raises(ringreduce.Error, match=NO_THREAD):
            call(np.zeros(1 << 20), 1 - rank, async_op=True)
    x = np.full(1 << 20, rank + 1.0)
    comm.send(x, 1) if rank == 0 else comm.recv(x, 0)
    assert x[-1] == 1
    comm.barrier()
if rank: os._exit(0)
""",
    "sockets": """
pid = os.fork()
rank = int(pid == 0)
with ringreduce.init(rank, 2, sys.argv[1], transport="tcp", timeout=20) as comm:
    left.value = 0
    with pytest.raises(ringreduce.Error, match=NO_THREAD):
        comm.send(ones(), 1 - rank, async_op=True)
    assert comm.all_reduce(ones()).tolist() == [2, 2, 2]
    if rank: comm.send(ones(), 0)
    else: assert comm.recv(np.zeros(3), 1).tolist() == [1, 1, 1]
    comm.barrier()
    if rank: os._exit(0)
    with pytest.raises(ringreduce.PeerLost):
        while True: comm.barrier()
    assert comm.shrink().all_reduce(ones()).tolist() == [1, 1, 1]
""",
    "torch": """
import torch, torch.distributed as dist
dist.init_process_group("ringreduce", store=dist.HashStore(), rank=0, world_size=1)
left.value = 0
for _ in range(2):
    with pytest.raises(RuntimeError, match=NO_THREAD):
        dist.all_reduce(torch.ones(3), async_op=True)
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.barrier()
left.value = 1
done = threading.Event()
future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
left.value = 0
future.then(lambda _: done.set())
assert done.wait(20)
dist.all_reduce(x)
left.value = -1
dist.all_reduce(torch.ones(3), async_op=True).wait()
dist.destroy_process_group()
""",
    "probe": """
from ringreduce import _engine
for n in (0, 1):
    left.value = n
    try: assert _engine.probe_exchange() is None
    except ringreduce.Error as error: assert n == 0 and "cannot start a thread" in str(error)
left.value = -1
""",
}


SLOW = {
    "horovod": """
import torch
os.environ["RINGREDUCE_SECRET"] = "0" * 32
import ringreduce.horovod.torch as hvd
hvd.init()
left.value = 0
for _ in range(2):
    with pytest.raises(RuntimeError, match="thread"):
        hvd.allreduce_async(torch.ones(3), name="a")
    assert hvd.allreduce(torch.ones(3), name="a").tolist() == [1, 1, 1]
left.value = -1
assert hvd.synchronize(hvd.allreduce_async(torch.ones(3), name="a")).tolist() == [1, 1, 1]
hvd.shutdown()
""",
}


@pytest.fixture(scope="module")
def limit(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("limit")
    (folder / "limit.c").write_text(LIMIT)
    library = folder / "limit.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "limit.c", "-ldl"], check=True)
    return library


@pytest.mark.parametrize("name", [*(name for name in PROGRAMS if name != "torch"), *slowly("torch", *SLOW)])
def test_without_threads(name, limit):
    program = HEAD + (PROGRAMS | SLOW)[name] + "\nprint('ended')"
    done = python("-W", "ignore", "-c", program, f"no-threads/{os.getpid()}", LD_PRELOAD=str(limit))
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ended"]), done.stderr
