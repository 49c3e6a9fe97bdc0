"""Messages from one rank to another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

from ringreduce.annotations import A, Array, No, Stream, Yes
from ringreduce.communicator.arrays import arrays, staging
from ringreduce.communicator.base import Base
from ringreduce.communicator.work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ringreduce.annotations import MessageArgs

__all__ = ["Messages"]


class Messages(Base):
    """The point-to-point messages of a communicator."""

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
        tag: int | None = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Work[None] | None:
        """Sends x to a rank, which must receive the same number of elements of the same dtype, with the same tag.

        Returns when x may be changed again. Up to 64 KiB, this is usually at once, before the other rank calls recv.
        Above, it is when the other rank has received the message. Messages with the same tag between two ranks arrive
        in the order in which they were sent.

        Args:
            dest: the receiving rank. It may be this rank, which then receives the message by another call.
            tag: a 32-bit integer. Only a recv with the same tag takes the message. None: kernels carry the message
                between two GPUs of a host, or NCCL between any two. It is launched on the stream, as collectives
                are, and both ends must pass None and have called :meth:`prepare`. The messages without a tag between
                two ranks are matched in the order of the calls, and one that is not asynchronous delays what comes
                later on its stream until the other rank receives it. Over NCCL it delays all later calls.
            stream: for an array in GPU memory, the stream that orders the copy to CPU memory, or the message itself.

        Raises:
            ValueError: tag is None, and x is not in GPU memory or neither kernels nor NCCL carry messages.
        """
        if tag is None:
            packed = arrays.contiguous(x)
            sent = self._c.exchange(True, packed, dest, async_op, stream)
            return None if sent is None else self._work(sent, None, packed, None, stream=stream)
        x = staging.taken(arrays.contiguous(x), self._c, stream)
        work = self._c.transfer(True, x, dest, tag, timeout, async_op)
        return None if isinstance(work, int) else self._work(work, None, x, None)

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
        tag: int | None = 0,
        timeout: float | None = None,
        async_op: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Receives the oldest message with this tag into x.

        Messages with other tags wait, and do not block later messages. If a message matches several receives, the
        receive that was called first gets it.

        Args:
            x: an array with the number of elements and the dtype that were sent.
            source: the sending rank. None takes a message from any rank, including this one.
            tag: as for :meth:`send`.
            stream: for an array in GPU memory, the stream that orders the copy from CPU memory. An asynchronous recv
                makes this copy in ``work.wait()``. If tag is None, the stream that the message is launched on.

        Returns:
            x. If source is None, x and the rank that sent the message.

        Raises:
            MismatchError: the message has a different number of elements or a different dtype. Both ranks raise it.
            PeerLost: the source has closed its communicator or died. If source is None, any rank has died, or all
                other ranks have closed their communicators.
        """
        target = arrays.contiguous(x)
        if target is not x:
            arrays.check_writable(x, "x")
        if tag is None:
            unpack = None if target is x else partial(arrays.unpack, target, x)
            coming = self._c.exchange(False, target, source, async_op, stream)
            if coming is not None:
                return self._work(coming, x, target, unpack, stream=stream)
            if unpack is not None:
                unpack()
            return x
        room = staging.twin(target, True)
        work = self._c.transfer(False, room, source, tag, timeout, async_op)
        after = None if room is x else partial(self._put, room, target, x, stream)
        if not isinstance(work, int):
            return self._work(work, x, room, after, source is None)
        if after is not None:
            after()
        return (x, work) if source is None else x

    def _put(self, room: Array, target: Array, x: Array, stream: Stream) -> None:
        """Moves a received message to x: target is x or a packed copy of it, room is target or in CPU memory."""
        if room is not target:
            staging.give(room, target, self._c, stream)
        if target is not x:
            arrays.unpack(target, x)
