"""How parameters, gradients and the optimizer's state are divided among the ranks of a group."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import Slot
from ringreduce.training.foundation.optimizer_state import Kinds, is_cut, state_like
from ringreduce.training.foundation.part import Part
from ringreduce.training.foundation.reducer import Keep, Reducer
from ringreduce.training.foundation.shares import Share
from ringreduce.training.foundation.usage import AnyUsage
from ringreduce.training.sharded_optimizer.reduce_scatter import ReduceScatter
from ringreduce.training.sharded_optimizer.share_layout import Range, ShareLayout

__all__ = ["Division"]

TAG = 0x7368  # keeps the gradients of copies apart from the program's messages


class Division:
    """The shares of all parameters, this rank's part of them, and its copies of other ranks' parts.

    Args:
        stage: 1 or 2, see ShardedOptimizer.
        copies: the number of ranks before this one of whose parts it has copies.

    Attributes:
        own: this rank's part.
        parts: this rank's part, and the copies.
        reducer: exchanges the gradients, in stage 2.
    """

    def __init__(self, comm: Communicator, layout: ShareLayout, stage: int, copies: int) -> None:
        self.comm, self.layout = comm, layout
        self.slots: list[Slot] = []
        self.shares: list[Share] = []
        self.parts = [Part(owner) for owner in owners_of_copies(comm.rank, comm.size, copies)]
        self.usage = AccumulatedUsage()
        self.exchange = ReduceScatter(comm)
        self.reducer: Reducer | None = None
        if stage == 2:
            self.reducer = Reducer(
                comm, "ShardedOptimizer", self.exchange, self.usage, Keep.NOTHING, waits=False
            )

    @property
    def own(self) -> Part:
        return self.parts[0]

    def add(self, slots: Sequence[Slot], groups: dict[Slot, int]) -> list[Share]:
        """Adds parameters, and returns their shares. Their gradients are not followed yet."""
        shares = self.layout.make(slots, groups)
        self.slots += slots
        self.shares += shares
        for part in self.parts:
            part.add(shares)
        return shares

    def follow(self, shares: list[Share], slots: Sequence[Slot], owner: object) -> None:
        """Makes the parameters views of the shares, and exchanges their gradients as long as ``owner`` exists."""
        for share in shares:
            share.adopt()
        if self.reducer is not None:
            if not self.reducer.hooks:
                self.unhook = weakref.finalize(owner, self.reducer.unhook)
            self.exchange.add(shares)
            self.reducer.follow(slots, [share.bucket for share in shares])

    def begin(self, optimizer_class: Any, defaults: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
        for part in self.parts:
            part.begin(optimizer_class, defaults, groups)

    # --- what regroup.py moves -----------------------------------------------------------------------------

    def table(self, size: int) -> list[list[Range]]:
        return self.layout.table(size)

    def kinds(self) -> Kinds:
        return {
            piece.slot.number: {
                key: value.dtype if is_cut(key, value, tuple(piece.parameter.shape)) else value
                for key, value in state.items()
            }
            for part in self.parts
            for piece, state in part.states()
        }

    def make_states(self, kinds: Kinds) -> None:
        for part in self.parts:
            for number, piece in part.numbered.items():
                if number in kinds:
                    part.inner.state[piece.parameter] = state_like(piece.parameter, kinds[number])

    def held(self, owner: int, number: int) -> tuple[int, dict[str, Any]]:
        part = next(part for part in self.parts if part.rank == owner)
        piece = part.numbered[number]
        return piece.first, part.inner.state[piece.parameter]

    # --- a step --------------------------------------------------------------------------------------------

    def hand_over(self, parts: Iterable[Part]) -> None:
        """Sets the averaged gradients of the parts' pieces."""
        if self.reducer is not None:
            self.reducer.settle()
        for part in parts:
            part.hand_over(self.reducer is not None, self.usage.used, part is self.own)

    def send_gradients(self) -> None:
        """Gives the ranks that have copies of this rank's part its gradients. Every rank must call it."""
        copies = self.parts[1:]
        if self.reducer is None or not copies:
            return
        works: list[Any] = []
        for distance, part in enumerate(copies, 1):
            dest = (self.comm.rank + distance) % self.comm.size
            for share in self.shares:
                if not share.has_gradient:
                    continue
                gradient = part.gradient(share)
                if len(gradient):
                    works.append(self.comm.recv(gradient, part.rank, tag=TAG, async_op=True))
                if len(share.gradient):
                    works.append(self.comm.send(share.gradient, dest, tag=TAG, async_op=True))
        for work in works:
            work.wait()

    def gather(self) -> None:
        """Sends this rank's parameters to all ranks, and receives theirs."""
        under_way = [(share.bucket, time.monotonic(), share.all_gather()) for share in self.shares]
        for bucket, submitted, gathering in under_way:
            self.exchange.meter.wait(bucket, submitted, gathering)

    def forget(self) -> None:
        """Removes the gradients."""
        self.usage.used.clear()
        self.exchange.forget()
        for part in self.parts:
            part.forget()


def owners_of_copies(rank: int, size: int, copies: int) -> list[int]:
    """Returns the ranks whose parts this rank holds: its own, and those before it."""
    return [(rank - distance) % size for distance in range(min(copies, size - 1) + 1)]


class AccumulatedUsage(AnyUsage):
    """Counts a missing gradient as zeros, unless no rank has one in any backward pass of the step.

    Attributes:
        used: the numbers of parameters with gradients.
    """

    again = ""

    def __init__(self) -> None:
        self.used: set[int] = set()

    def agreed(self, used: set[int] | None) -> set[int]:
        self.used |= used or set()
        return self.used
