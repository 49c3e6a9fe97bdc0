"""Groups whose ranks are threads of one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ringreduce import _engine, environment, log
from ringreduce._engine import values
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.cuda.cuda_driver import has_initialized_driver
from ringreduce.start.bootstrap import check

__all__ = ["local_group"]

MOST = 2**31 - 1  # the largest number of ranks, and number of a device


def local_group(
    size: int,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    device: int | Sequence[int] | None = None,
) -> list[Communicator]:
    """Makes a group of ranks within this process. Each rank's communicator is for one thread.

    Args:
        size: the number of ranks.
        timeout: the seconds after which a wait gives up.
        reproducible: as for :func:`ringreduce.init`.
        device: the number of the GPU that all ranks share, or a sequence with the GPU of each rank. The group then
            allocates everything that collectives need there at once, instead of in the first collective. Ranks must
            launch on different streams: two ranks of the group on one stream raise an error.

    Returns:
        A list of communicators, by rank.

    Raises:
        ValueError: the number of devices is not the number of ranks, or a GPU has too many ranks.
        Error: a GPU cannot be used.
    """
    values.whole(size, "size", 1, MOST)
    timeout = check(timeout, reproducible, None)
    log.begin(0)
    environment.check(os.environ)
    group = [Communicator(engine, timeout) for engine in _engine.local_group(size, timeout, reproducible)]
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
    _ask_for_queues()
    with ThreadPoolExecutor(len(group)) as pool:  # the ranks wait for each other in it
        for done in [
            pool.submit(comm._c.prepare_device, device) for comm, device in zip(group, devices, strict=True)
        ]:
            done.result()


def _ask_for_queues() -> None:
    """Asks CUDA for as many queues between this process and a GPU as it can make, unless it has been initialized.

    Kernels of streams that share a queue may wait for each other, and ranks' kernels must not: see
    csrc/engine/gpu/kernels/boxes.cpp.
    """
    if not has_initialized_driver():
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
