"""The group of a compression method: three blocking collectives, and a count of the bytes that they send."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ringreduce import _engine
from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.communicator.world import world

__all__ = ["GroupCopy", "Tensor", "all_reduce_bytes", "padded_rows"]

Tensor = Any  # torch.Tensor


class GroupCopy:
    """A copy of a group of ranks, whose collectives only one thread may call.

    Arguments and errors are those of :class:`~ringreduce.compression.Compression`.

    Attributes:
        bytes_sent: the bytes that this rank has sent, by the formulas in docs/training.md.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        if group is None:
            group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else world()
        if isinstance(group, Communicator):
            self._ranks: Any = group.split(0)
        elif group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("this process is not a rank of group")
        elif isinstance(group, dist.ProcessGroup):
            self._ranks = OfProcessGroup(group, timeout)
        else:
            raise TypeError(f"group must be a ringreduce.Communicator, a ProcessGroup or None, not {group!r}")
        self.rank, self.size, self.bytes_sent = self._ranks.rank, self._ranks.size, 0

    def mean(self, x: Tensor, wire: Wire | None = None) -> None:
        """Averages all ranks' float32 x in place. wire is the engine's name for the format in which values travel."""
        nbytes = _engine.reduce.encoded_bytes(wire or "none", x.numel())
        self.bytes_sent += all_reduce_bytes(nbytes, self.size)
        if wire is not None:
            x.div_(self.size)  # first, so that sums stay in the format's range
        self._ranks.all_reduce(x, wire=wire)
        if wire is None:
            x.div_(self.size)

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Sends row r of rows [size, ...] to rank r. Row r of the result is from rank r."""
        self.bytes_sent += rows.nbytes // self.size * (self.size - 1)
        return self._ranks.all_to_all(rows)

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns all ranks' x as [size, ...]."""
        self.bytes_sent += x.nbytes * (self.size - 1)
        return self._ranks.all_gather(x[None])

    def close(self) -> None:
        """Leaves the group."""
        self._ranks.close()


class OfProcessGroup:
    """A copy of a process group of any backend, with the methods of a Communicator that Group calls."""

    def __init__(self, group: Any, timeout: float) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._group = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=timedelta(seconds=timeout),
            backend=dist.get_backend_config(group),
            use_local_synchronization=True,  # ranks outside of the group need not call it
        )

    def all_reduce(self, x: Tensor, wire: Wire | None) -> None:
        """Adds up all ranks' x in place.

        With a wire format, rank r adds up all ranks' r-th parts. Values are rounded twice, for any number of ranks.
        They are encoded in CPU memory.
        """
        if wire is None:
            dist.all_reduce(x, group=self._group)
            return
        rows = padded_rows(x, self.size, 256)  # whole blocks of the int8 format
        length = rows.shape[1]
        own = _decoded(wire, self.all_to_all(_encoded(wire, rows)), length).sum(0, keepdim=True)
        sums = _decoded(wire, self.all_gather(_encoded(wire, own)), length)
        x.copy_(sums.view(-1)[: len(x)])

    def all_to_all(self, rows: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows, group=self._group)
        return out

    def all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self.size, *x.shape[1:]))
        dist.all_gather(list(out.split(1)), x, group=self._group)
        return out

    def close(self) -> None:
        """Does nothing: destroy_process_group() destroys the group."""


def padded_rows(flat: Tensor, rows: int, multiple: int) -> Tensor:
    """Returns flat as [rows, columns], padded with zeros so that columns is a multiple of multiple.

    It is a view if no padding is needed.
    """
    missing = -flat.numel() % (rows * multiple)
    return (pad(flat, (0, missing)) if missing else flat).view(rows, -1)


def _encoded(wire: str, rows: Tensor) -> Tensor:
    """Encodes float32 [rows, n], n a multiple of 256, as uint8 [rows, bytes]."""
    out: Tensor = torch.empty(len(rows), _engine.reduce.encoded_bytes(wire, rows.shape[1]), dtype=torch.uint8)
    _engine.reduce.encode(wire, out.view(-1).numpy(), rows.cpu().view(-1).view(torch.uint8).numpy())
    return out.to(rows.device)


def _decoded(wire: str, rows: Tensor, length: int) -> Tensor:
    """The inverse of _encoded(). Returns float32 [rows, length]."""
    out: Tensor = torch.empty(len(rows), length)
    _engine.reduce.decode(wire, out.view(-1).view(torch.uint8).numpy(), rows.cpu().view(-1).numpy())
    return out.to(rows.device)


def all_reduce_bytes(nbytes: int, size: int) -> int:
    """Returns the least bytes that a rank sends in an all-reduce of nbytes, rounded up."""
    return -(-2 * (size - 1) * nbytes // size)
