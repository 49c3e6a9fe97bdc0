"""A communicator's messages from one rank to another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

from ringreduce.annotations import A, Array, No, Yes
from ringreduce.arrays import arrays, staging
from ringreduce.arrays.streams import Stream
from ringreduce.communicator.base import Base
from ringreduce.communicator.work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ringreduce.annotations import MessageArgs

__all__ = ["Messages"]


class Messages(Base):
    """What two ranks do."""

    @overload
    def send(self, x: Array, dest: int, *, async_op: No = False, **rest: Unpack[MessageArgs]) -> None: ...
    @overload
    def send(self, x: Array, dest: int, *, async_op: Yes, **rest: Unpack[MessageArgs]) -> Work[None]: ...
    @overload
    def send(
        self, x: Array, dest: int, *, async_op: bool = False, **rest: Unpack[MessageArgs]
    ) -> Work[None] | None: ...
    def send(
        self,
        x: Array,
        dest: int,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Work[None] | None:
        """Sends x to a rank, which must receive as many elements of the same dtype with the same tag.

        Returns when x may be changed again: for up to 64 KiB as a rule at once, before the other rank has asked
        for the message; for more when it has received it. Messages of one tag between two ranks are received
        in the order in which they were sent.

        Args:
            dest: a rank; this one too, which receives it by another call, now or later.
            tag: which receives may take the message: those of the same tag. A 32-bit integer.
            stream: of an array in GPU memory, which is copied to the CPU's first, when the stream has come so far.
        """
        x = staging.taken(arrays.contiguous(x), self._c, stream)
        work = self._c.transfer(True, x, dest, tag, timeout, async_op)
        return None if isinstance(work, int) else self._work(work, None, (x,), None)

    @overload
    def recv(self, x: A, source: int, *, async_op: No = False, **rest: Unpack[MessageArgs]) -> A: ...
    @overload
    def recv(
        self, x: A, source: None = None, *, async_op: No = False, **rest: Unpack[MessageArgs]
    ) -> tuple[A, int]: ...
    @overload
    def recv(self, x: A, source: int, *, async_op: Yes, **rest: Unpack[MessageArgs]) -> Work[A]: ...
    @overload
    def recv(
        self, x: A, source: None = None, *, async_op: Yes, **rest: Unpack[MessageArgs]
    ) -> Work[tuple[A, int]]: ...
    @overload
    def recv(
        self, x: Array, source: int | None = None, *, async_op: bool = False, **rest: Unpack[MessageArgs]
    ) -> Any: ...
    def recv(
        self,
        x: Array,
        source: int | None = None,
        *,
        tag: int = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Receives the oldest message of this tag into x.

        Messages of other tags wait, and keep none behind them from being received. Of several receives that one
        message fits, the one that was called first gets it.

        Args:
            x: of as many elements as were sent, and of the same dtype.
            source: the rank that sends; None takes a message from any rank (this one included).
            tag: as in send.
            stream: in whose order an array in GPU memory gets what has come; by ``work.wait()`` if asynchronous.

        Returns:
            x; where source is None, x and the rank that it came from.

        Raises:
            MismatchError: the message has another number of elements or another dtype; on both ranks.
            PeerLost: the rank has closed its communicator or died. Without a source: any rank has died, or all
                others have closed theirs.
        """
        target = arrays.contiguous(x)
        if target is not x:
            arrays.check_writable(x, "x")
        room = staging.twin(target)
        work = self._c.transfer(False, room, source, tag, timeout, async_op)
        after = None if room is x else partial(self._put, room, target, x, stream)
        if not isinstance(work, int):
            return self._work(work, x, (room,), after, source is None)
        if after is not None:
            after()
        return (x, work) if source is None else x

    def _put(self, room: Array, target: Array, x: Array, stream: Stream) -> None:
        """What has come, where it was wanted: target is x or a packed copy, room is target or in the CPU's memory."""
        if room is not target:
            staging.give(room, target, self._c, stream)
        if target is not x:
            arrays.unpack(target, x)
