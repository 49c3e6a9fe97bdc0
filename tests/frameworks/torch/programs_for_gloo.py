"""What tests/frameworks/torch/test_as_gloo.py runs: programs that ask for Gloo, and do not know of ringreduce."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def backend_of(group, device="cpu"):
    return type(group._get_backend(torch.device(device))).__module__.split(".")[0]


def every_way():
    """Each way to ask for Gloo leads to the same backend, and what names it says what it says of Gloo."""
    dist.init_process_group("gloo")
    rank, default = dist.get_rank(), dist.distributed_c10d._get_default_group()
    groups = {
        "default": default,
        "new_group": dist.new_group([0, 1], backend="gloo"),
        "composite": dist.new_group([0, 1], backend="cpu:gloo,cuda:gloo"),
        "mesh": init_device_mesh("cpu", (2,)).get_group(),
    }
    for name, group in groups.items():
        x = torch.full((5,), rank + 1.0)
        dist.all_reduce(x, group=group)
        assert (x == 3).all(), name
        if not os.environ.get("TORCH_DISTRIBUTED_DEBUG"):  # which wraps them
            assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo), name
    assert [dist.get_backend(one) for one in groups.values()] == [
        "gloo",
        "gloo",
        "cpu:gloo,cuda:gloo",
        "gloo",
    ]
    assert dist.is_gloo_available() and dist.Backend("GLOO") == dist.Backend.GLOO == "gloo"
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    everybody = [None, None]
    dist.all_gather_object(everybody, rank)
    assert everybody == [0, 1]
    store = dist.PrefixStore("alone", dist.distributed_c10d._get_default_store())
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=20)
    made = [
        dist.ProcessGroupGloo(dist.PrefixStore("seconds", store), rank, 2, timeout=20.0),
        dist.ProcessGroupGloo(dist.PrefixStore("timeout", store), rank, 2, timedelta(seconds=20)),
        dist.ProcessGroupGloo(dist.PrefixStore("options", store), rank, 2, options),
        dist.ProcessGroupGloo(store=dist.PrefixStore("named", store), rank=rank, size=2),
    ]
    for one in made:
        x = torch.full((5,), rank + 1.0)
        one.allreduce([x]).wait()
        assert (x == 3).all()
    devices = [made[0].create_device(interface="lo"), made[0].create_default_device()]
    assert all(isinstance(one, type(options._devices[0])) for one in devices)
    assert isinstance(options, made[0]._Options) and made[2].options._timeout == timedelta(seconds=20)

    class Own(dist.ProcessGroupGloo):
        pass

    own = Own(dist.PrefixStore("own", store), rank, 2, timedelta(seconds=20))
    print([*map(backend_of, groups.values()), *(type(one).__module__ for one in made), own.name()])
    dist.destroy_process_group()


def served(_=None):
    """What a process gets that asks for Gloo and for Horovod."""
    import horovod

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return backend_of(dist.distributed_c10d._get_default_group()), "as_horovod" in horovod.__file__


def with_horovod():
    """Horovod and Gloo in one program, and in a process that it spawns."""
    import horovod.torch as hvd

    hvd.init()
    dist.init_process_group("gloo")
    x = torch.full((5,), hvd.rank() + 1.0)
    assert (hvd.allreduce(x, op=hvd.Sum) == 3).all()
    dist.all_reduce(x)
    assert (x == 3).all()
    with torch.multiprocessing.get_context("spawn").Pool(1) as spawned:
        print([backend_of(dist.distributed_c10d._get_default_group()), spawned.apply(served)])
    dist.destroy_process_group()


def with_some_ranks_switched():
    """The other ranks run the same without the variable. Prints when this one arrived, and its error with the time."""
    print(time.time())
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=600))  # longer than the test waits
        dist.all_reduce(torch.ones(5))
    except Exception as error:
        print(time.time(), error)
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.exit(3)


def _started(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x)
    assert (x == 3).all()
    os.write(1, f"{backend_of(dist.distributed_c10d._get_default_group())}\n".encode())
    dist.destroy_process_group()


def spawned():
    _by_torch("spawn")


def forked():
    _by_torch("fork")


def _by_torch(how):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_started, (f"{folder}/store",), nprocs=2, start_method=how)


def spawned_after_the_variable():
    """As in a notebook, where torch may be imported already."""
    os.environ["RINGREDUCE_AS"] = "gloo"
    spawned()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
