"""New groups made from one: of some of its ranks, of the survivors, or of all ranks and newcomers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ringreduce import _engine
from ringreduce._engine import values
from ringreduce.communicator.base import DEFAULT_TIMEOUT, Base
from ringreduce.errors import Error

if TYPE_CHECKING:
    from ringreduce.communicator.communicator import Communicator

__all__ = ["Groups", "Growth"]


class Growth(Protocol):
    """How a group admits newcomers. :mod:`ringreduce.start.growing` provides it."""

    def pending(self, comm: Communicator, fingerprint: str | bytes | None, /) -> int:
        """Returns how many processes wait to join. See :meth:`Groups.pending`."""

    def grow(
        self, comm: Communicator, timeout: float, fingerprint: str | bytes | None, /
    ) -> _engine.Communicator:
        """Returns the engine of the group that has grown. See :meth:`Groups.grow`."""

    def successor(self) -> Growth:
        """Returns the growth of a group that is made from this one, which takes over the door."""

    def close(self) -> None:
        """Closes the door."""


class Groups(Base):
    """The part of a communicator that makes others."""

    def __init__(
        self,
        engine: _engine.Communicator,
        timeout: float = DEFAULT_TIMEOUT,
        new_growth: Callable[[], Growth] | None = None,
        growth: Growth | None = None,
    ) -> None:
        super().__init__(engine, timeout)
        self._new_growth = new_growth  # None: newcomers cannot find the group
        self._growth = growth  # None: it has not been asked for
        self._on_success: Callable[[Communicator], None] | None = None  # told of the group's successor

    def split(
        self,
        color: int | None,
        key: int | None = None,
        *,
        max_blocks: int | None = None,
        priority: int | None = None,
    ) -> Communicator | None:
        """Divides the group: ranks with the same color form a new group. Every rank must call it.

        Args:
            color: the number of the new group. None joins no group.
            key: orders the ranks of a new group; equal keys are ordered by rank.
            max_blocks: as for :func:`ringreduce.init`. None takes this group's.
            priority: as for :func:`ringreduce.init`. None takes this group's.

        Returns:
            The communicator of this rank's new group, or None if color is None.
        """
        child = self._c.split(color, key, max_blocks, priority)
        return None if child is None else self._new(child)

    def shrink(self) -> Communicator:
        """Returns a new communicator of the surviving ranks, after others were lost.

        Every survivor must call it. The survivors keep their order. If the group was cut in two, at most one side
        continues: the one with more ranks, or of two equal halves the one with the lowest rank. Ranks that are known to
        have ended do not count.

        Raises:
            MinorityError: this is the side that must not continue. docs/reliability.md says more.
            TimeoutError: a rank is alive but does not call it.
        """
        return self._successor(self._c.shrink(), self._growth and self._growth.successor())

    def pending(self, *, fingerprint: str | bytes | None = None) -> int:
        """Returns how many processes wait in :func:`ringreduce.join` for this group.

        Every rank must call it, and all get the same number. It costs about as much as a broadcast of one number, so a
        training loop can call it in every step. The first call opens the door: one rank begins to listen where the
        group was started, and newcomers that came earlier find it. Groups that :meth:`shrink` and :meth:`grow` make
        inherit the door. Groups made by :meth:`split` or :func:`ringreduce.local_group` have none. A process that no
        launcher has started is alone, and gets 0.

        Args:
            fingerprint: any text or bytes that newcomers must give too, such as a hash of the model's configuration.
                None leaves it as it was, which is none at first. Must be the same on all ranks.

        Raises:
            ValueError: newcomers have no way to find this group, or the ranks give different fingerprints.
            Error: the place at which newcomers look for the group is in use, or a newer group has taken it over.
        """
        return self._door().pending(self._whole(), fingerprint)

    def grow(self, *, timeout: float | None = None, fingerprint: str | bytes | None = None) -> Communicator:
        """Admits newcomers, and returns a new communicator of all ranks of this group and of the newcomers.

        Every rank must call it. The ranks of this group keep their numbers, and the newcomers follow. It does not wait
        for newcomers: later ones join with the next call, and if none waits, the new communicator has the ranks of this
        group. Newcomers that die while they join, or that cannot be connected, are left out. This group stays as it
        was, even after an error, unless the error ends it.

        Args:
            timeout: seconds to wait for other ranks of this group. None takes the communicator's timeout.
            fingerprint: as for :meth:`pending`.

        Raises:
            ValueError: as for :meth:`pending`.
            PeerLost: a rank of this group has died. Call :meth:`shrink`; the newcomers ask again by themselves.
            TimeoutError: a rank of this group does not call it.
            Error: the ranks of this group cannot be connected again.
        """
        limit = self.timeout if timeout is None else values.seconds(timeout, "timeout")
        growth = self._door()
        grown = self._successor(growth.grow(self._whole(), limit, fingerprint), growth.successor())
        with contextlib.suppress(Error):  # those of the new group, which its next call raises as well
            grown.barrier(timeout=limit)  # newcomers return from theirs when all ranks have agreed
        return grown

    def _door(self) -> Growth:
        if self._new_growth is None:
            raise ValueError(
                "newcomers cannot find this group, because it was made by split() or within one process: call this on "
                "the communicator from init(), or on one that shrink() or grow() has made of it"
            )
        if self._growth is None:
            self._growth = self._new_growth()
        return self._growth

    def _close_door(self) -> None:
        if self._growth is not None:
            self._growth.close()

    def _successor(self, engine: _engine.Communicator, growth: Growth | None) -> Communicator:
        made = self._new(engine, self._new_growth, growth)
        if self._on_success is not None:
            self._on_success(made)
            self._on_success = None
        return made

    def _whole(self) -> Communicator:
        from ringreduce.communicator.communicator import Communicator

        assert isinstance(self, Communicator)
        return self

    def _new(
        self,
        engine: _engine.Communicator,
        new_growth: Callable[[], Growth] | None = None,
        growth: Growth | None = None,
    ) -> Communicator:
        from ringreduce.communicator.communicator import Communicator

        return Communicator(engine, self.timeout, new_growth, growth)
