"""What the methods need of a group of ranks: three blocking collectives, and a count of the bytes that they send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringreduce import _engine
from ringreduce.communicator import Communicator
from ringreduce.on_world import world

__all__ = ["Group", "group_like"]

Tensor = Any  # torch.Tensor


class Group(ABC):
    """Ranks with collectives that only one thread may call.

    Attributes:
        bytes_sent: what this rank had to send: of each collective the least that any algorithm sends where ranks have
            equal shares. Of S bytes these are 2 (N-1)/N S for an all_reduce, (N-1)/N S for an all_to_all and (N-1) S
            for an all_gather of S bytes from each rank. Few-round algorithms, which are picked for small messages,
            send more; headers are not counted.
    """

    has_wire_formats = False

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.bytes_sent = rank, size, 0

    def mean(self, x: Tensor, wire: str | None = None) -> None:
        """Averages all ranks' x in place; wire, what values travel as, is for groups with such formats."""
        self.bytes_sent += all_reduce_bytes(wire_bytes(wire, x), self.size)
        if wire is not None:
            x.div_(self.size)  # first, so that sums stay in the format's range
        self._sum(x, wire)
        if wire is None:
            x.div_(self.size)

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Row r of rows [size, ...] goes to rank r; the result's row r is from rank r."""
        self.bytes_sent += rows.nbytes // self.size * (self.size - 1)
        return self._all_to_all(rows)

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x as [size, ...]."""
        self.bytes_sent += x.nbytes * (self.size - 1)
        return self._all_gather(x)

    @abstractmethod
    def _sum(self, x: Tensor, wire: str | None) -> None: ...

    @abstractmethod
    def _all_to_all(self, rows: Tensor) -> Tensor: ...

    @abstractmethod
    def _all_gather(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, if that is not to be left to the end of the program."""


def all_reduce_bytes(nbytes: int, size: int) -> int:
    """What a rank sends at least in an all_reduce of nbytes, rounded up."""
    return -(-2 * (size - 1) * nbytes // size)


def wire_bytes(wire: str | None, x: Tensor) -> int:
    return int(x.nbytes if wire is None else _engine.reduce.encoded_bytes(wire, x.numel()))


class OverCommunicator(Group):
    """On a copy of a communicator."""

    has_wire_formats = True

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        child = comm.split(0)
        assert child is not None
        self._comm = child

    def _sum(self, x: Tensor, wire: str | None) -> None:
        self._comm.all_reduce(x, wire=wire)

    def _all_to_all(self, rows: Tensor) -> Tensor:
        return self._comm.all_to_all(rows)

    def _all_gather(self, x: Tensor) -> Tensor:
        return self._comm.all_gather(x[None])

    def close(self) -> None:
        self._comm.close()


class OverProcessGroup(Group):
    """On a copy of a process group of any backend."""

    def __init__(self, group: Any, timeout: float) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=timeout),
            backend=dist.get_backend_config(group),
            use_local_synchronization=True,  # ranks outside of the group need not call it
        )

    def _sum(self, x: Tensor, wire: str | None) -> None:
        assert wire is None, "torch's groups have no wire formats"
        dist.all_reduce(x, group=self._group)

    def _all_to_all(self, rows: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows, group=self._group)
        return out

    def _all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self.size, *x.shape))
        dist.all_gather(list(out.unbind()), x, group=self._group)
        return out

    def close(self) -> None:
        pass  # destroy_process_group() does it


def group_like(group: Any, timeout: float) -> Group:
    """A group of its own of the ranks of group: a Communicator, a ProcessGroup, or None for all ranks.

    Raises:
        TypeError: group is something else.
        ValueError: this process is not one of its ranks.
    """
    if group is None:
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else world()
    if isinstance(group, Communicator):
        return OverCommunicator(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this process is not a rank of group")
    if isinstance(group, dist.ProcessGroup):
        return OverProcessGroup(group, timeout)
    raise TypeError(f"group must be a ringreduce.Communicator, a ProcessGroup or None, not {group!r}")
