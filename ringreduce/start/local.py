"""Groups whose ranks are threads of one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ringreduce import _engine, environment, log
from ringreduce._engine import values
from ringreduce.build.cuda_driver import has_initialized_driver
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.start.bootstrap import check

__all__ = ["local_group"]

MOST = 2**31 - 1  # the largest number of ranks, and number of a device


def local_group(
    size: int,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    device: int | Sequence[int] | None = None,
    max_blocks: int | None = None,
    priority: int | None = None,
) -> list[Communicator]:
    """Makes a group of ranks within this process. Each rank's communicator is for one thread.

    Args:
        size: the number of ranks.
        timeout: the seconds after which a wait gives up.
        reproducible: as for :func:`ringreduce.init`.
        device: the number of the GPU that all ranks share, or a sequence with the GPU of each rank. The group then
            allocates everything that collectives need there at once, instead of in the first collective. Ranks must
            launch on different streams: two ranks of the group on one stream raise an error.
        max_blocks: as for :func:`ringreduce.init`.
        priority: as for :func:`ringreduce.init`.

    Returns:
        A list of communicators, by rank.

    Raises:
        ValueError: the number of devices is not the number of ranks.
        Error: a GPU cannot be used, or has too few queues or thread blocks for its ranks.
    """
    values.whole(size, "size", 1, MOST)
    timeout = check(timeout, reproducible, None, max_blocks=max_blocks, priority=priority)
    log.begin(0)
    environment.check(os.environ)
    engines = _engine.local_group(size, timeout, reproducible, max_blocks, priority)
    group = [Communicator(engine, timeout) for engine in engines]
    if device is not None:
        each_its_own = isinstance(device, Iterable) and not isinstance(device, str | bytes)
        devices = list(device) if each_its_own else [device] * size  # type: ignore[arg-type]
        _prepare_devices(group, [values.whole(each, "device", most=MOST) for each in devices])
    return group


def _prepare_devices(group: list[Communicator], devices: list[int]) -> None:
    if len(devices) != len(group):
        raise ValueError(
            f"device must have one number for each of the {len(group)} ranks, not {len(devices)}"
        )
    _set_up_cuda(max(map(devices.count, devices)))
    with ThreadPoolExecutor(len(group)) as pool:  # the ranks wait for each other in it
        for done in [
            pool.submit(comm._c.prepare_device, device) for comm, device in zip(group, devices, strict=True)
        ]:
            done.result()


def _set_up_cuda(ranks: int) -> None:
    """Lets `ranks` of this process share a GPU, unless CUDA has been initialized and no longer looks.

    Their kernels must not wait for each other in other ways than by words in memory. Those of streams that share one of
    the queues between this process and the GPU may (see csrc/gpu/kernels/boxes.cpp), so CUDA is to make as many
    queues as it can. To load a kernel, CUDA may wait for those that run, so it is to load all at once.
    """
    if has_initialized_driver():
        return
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if ranks > 1:
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
