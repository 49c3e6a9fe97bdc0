"""Ranks that are threads of one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ringreduce import _engine, log
from ringreduce._engine import values
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator
from ringreduce.cuda.cuda_driver import has_initialized_driver
from ringreduce.start.bootstrap import check

__all__ = ["local_group"]

MOST = 2**31 - 1  # that numbers of ranks and of devices can be


def local_group(
    size: int,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    reproducible: bool | None = None,
    device: int | Sequence[int] | None = None,
) -> list[Communicator]:
    """A group of ranks within this process: one communicator per rank, each for a thread of its own.

    Args:
        size: the number of ranks.
        timeout: seconds after which a wait gives up.
        reproducible: as for :func:`ringreduce.init`.
        device: the number of the GPU that all ranks share, or of each rank's. Everything that collectives need there
            is made now, and not at the first of them. Each rank's calls go to a stream of its own: two ranks of the
            group that launch on the same stream are refused.

    Raises:
        ValueError: there is not one device for each rank, or there are more than 16 ranks on GPUs.
        Error: a GPU cannot be used.
    """
    values.whole(size, "size", 1, MOST)
    timeout = check(timeout, reproducible, None)
    log.begin(0)
    group = [Communicator(engine, timeout) for engine in _engine.local_group(size, timeout, reproducible)]
    if device is not None:
        each_its_own = isinstance(device, Iterable) and not isinstance(device, str | bytes)
        devices = list(device) if each_its_own else [device] * size  # type: ignore[arg-type]
        _prepare_devices(group, [values.whole(each, "device", most=MOST) for each in devices])
    return group


def _prepare_devices(group: list[Communicator], devices: list[int]) -> None:
    if len(devices) != len(group):
        raise ValueError(f"device has {len(devices)} numbers for {len(group)} ranks")
    _ask_for_queues()
    with ThreadPoolExecutor(len(group)) as pool:  # they meet
        for done in [
            pool.submit(comm._c.prepare_device, device) for comm, device in zip(group, devices, strict=True)
        ]:
            done.result()


def _ask_for_queues() -> None:
    """Has CUDA make as many queues between this process and a GPU as it can, if it is still to read how many.

    Kernels of streams that share one may wait for each other, and then ranks' kernels must not: see
    csrc/engine/gpu/kernels/boxes.cpp.
    """
    if not has_initialized_driver():
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
