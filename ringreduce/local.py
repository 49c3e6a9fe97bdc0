"""Ranks that are threads of one process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ringreduce import _engine
from ringreduce.communicator import DEFAULT_TIMEOUT, Communicator

__all__ = ["local_group"]


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
        Error: a GPU cannot be used, or does not run the kernels of all its ranks at the same time.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    group = [Communicator(engine, timeout) for engine in _engine.local_group(size, timeout, reproducible)]
    if device is not None:
        _prepare_devices(group, [device] * size if isinstance(device, int) else list(device))
    return group


def _prepare_devices(group: list[Communicator], devices: list[int]) -> None:
    if len(devices) != len(group):
        raise ValueError(f"device has {len(devices)} numbers for {len(group)} ranks")
    with ThreadPoolExecutor(len(group)) as pool:  # they meet
        for done in [
            pool.submit(comm._c.prepare_device, device) for comm, device in zip(group, devices, strict=True)
        ]:
            done.result()
