"""A server: answers workers' requests for its shards, and keeps a copy of its neighbour's shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ringreduce.errors import Error
from ringreduce.training.parameter_server.shard import Shard
from ringreduce.training.parameter_server.tickets import END
from ringreduce.training.parameter_server.wire import Channel, Message, MessageKind

__all__ = ["Service"]

FOREVER = 1e9  # seconds; only the other end, its death or close() ends such a wait


class Service:
    """The shards of a server rank, and a thread for each rank that may send it something.

    Each shard has a *primary*, which answers requests, and a copy on the next server. The primary sends all that
    changes the shard to the copy, and answers the worker when the copy has it, too. If a server is lost, the next one
    becomes the primary of its shards, and makes new copies on the server after it.

    Args:
        servers: the ranks of all servers. Shard number n begins on the n-th.
        requests: the channels of the workers, by rank; others are left alone.
        copies: the channels of the other servers, by rank, or none.
        worker_of: the number of each rank's worker.
        make: makes a shard with its first values.
        patience: the seconds of silence after which a worker counts as lost.
    """

    def __init__(
        self,
        rank: int,
        servers: list[int],
        requests: dict[int, Channel],
        copies: dict[int, Channel],
        worker_of: dict[int, int],
        make: Callable[[int], Shard],
        patience: float,
    ) -> None:
        self._rank, self._servers, self._make, self._patience = rank, servers, make, patience
        self._worker_of, self._copies = worker_of, copies
        self._changed = threading.Condition()  # guards what follows; notified when tickets or ranks change
        self._left: set[int] = set()  # workers that have ended or were lost
        self.lost: set[int] = set()  # ranks
        self._no_more_copies: set[int] = set()  # servers that were lost, and whose last copy has been taken
        own = servers.index(rank)
        self._shards = {own: make(own)}
        self._replicas: dict[int, Shard] = {}
        if copies:
            before = (own - 1) % len(servers)
            self._replicas[before] = make(before)
            self._shards[own].holder = self._after()
        self._threads: list[threading.Thread] = []
        workers = {peer: channel for peer, channel in requests.items() if peer in worker_of}
        for answers, channels in ((self._serve, workers), (self._keep_copies, copies)):
            for peer, channel in channels.items():
                name = f"parameter server, rank {peer}"
                thread = threading.Thread(target=answers, args=(peer, channel), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def join(self, timeout: float) -> bool:
        """Waits until all workers have ended or were lost. Returns whether they have."""
        workers = set(self._worker_of.values())
        with self._changed:
            return self._changed.wait_for(lambda: workers <= self._left, timeout)

    def end(self) -> None:
        """Tells the other servers that no more copies come from here, and waits for the same of them.

        A stopped server cannot say so. The wait is as long as any server may wait for its workers.
        """
        until = time.monotonic() + self._patience * (len(self._worker_of) + 3)
        for peer, channel in self._copies.items():
            try:
                with channel.turn:
                    channel.send(Message(MessageKind.BYE), False)
            except Error:
                self._lose(peer)
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < until:
                thread.join(0.1)  # a signal can interrupt it in between

    # --- requests ------------------------------------------------------------------------------------------

    def _serve(self, peer: int, channel: Channel) -> None:
        """Answers one worker until it says goodbye or is lost."""
        worker = self._worker_of[peer]
        try:
            while True:
                message = channel.receive(False, self.room, self._silence)
                if message.kind is MessageKind.BYE:
                    break
                reply = self.handle(message)
                for work in channel.send(reply, True):
                    work.wait()
                if reply.dense is not None and not (shard := self._shards[message.shard]).lends(message):
                    shard.pool.give(reply.dense)
        except Error:
            self._lose(peer)
        self.leave(worker)

    @property
    def _silence(self) -> float:
        """Returns how long a worker may be silent.

        Only the server that hands out the tickets drops silent workers: others may not hear of one that waits for its
        ticket, because a slower worker must be dropped first.
        """
        return self._patience if 0 in self._shards else self._patience * (len(self._worker_of) + 2)

    def room(self, message: Message) -> list[Any]:
        """Returns memory for the gradients of a message."""
        shard = self._shards.get(message.shard) or self._replicas.get(message.shard)
        return (shard or self._make(message.shard)).pool.take()

    def handle(self, message: Message, into: list[Any] | None = None) -> Message:
        """Answers a request.

        Args:
            message: its tensors are from :meth:`room`, and belong to the shard afterwards.
            into: memory for the values of a pull by a worker of this process.
        """
        try:
            return self._handle(message, into)
        except Error:
            raise
        except Exception as error:  # of the optimizer
            return Message(
                MessageKind.FAILED, message.shard, payload=f"{type(error).__name__}: {error}".encode()
            )

    def _handle(self, message: Message, into: list[Any] | None) -> Message:
        shard = self._shard(message.shard)
        if shard is None:
            return Message(MessageKind.LOST, message.shard)
        if message.kind is MessageKind.STATE:
            with shard.lock:
                return Message(MessageKind.DONE, message.shard, payload=shard.state())
        if message.kind is MessageKind.PULL:
            with shard.lock:
                if shard.needs_close(message.clock):
                    self._run(
                        shard,
                        Message(
                            MessageKind.CLOSE, shard.number, clock=message.clock, present=message.present
                        ),
                    )
                if shard.compensates:
                    self._run(shard, Message(MessageKind.MARK, shard.number, message.worker))
                return shard.read(message, into)
        self._run(shard, message)
        if message.kind is MessageKind.ASK:
            return self._answer(shard, message)
        return Message(MessageKind.DONE, message.shard)

    def _answer(self, shard: Shard, message: Message) -> Message:
        """Waits until a worker may begin its next ticket."""
        worker, number = message.worker, message.number
        limit = self._patience * (len(self._worker_of) + 1)  # each of the others may have to be dropped first
        with self._changed:
            self._changed.wait_for(lambda: shard.tickets.answer(worker, number) is not None, limit)
            grant = shard.tickets.answer(worker, number)
        if grant is None:
            return Message(MessageKind.LOST, message.shard)
        ticket, clock, present, floor = grant
        return Message(
            MessageKind.DONE, message.shard, ticket=ticket, clock=clock, present=present, floor=floor
        )

    def leave(self, worker: int) -> None:
        """Ends all waits for a worker."""
        with self._changed:
            self._left.add(worker)
            shard = self._shards.get(0)
            self._changed.notify_all()
        if shard is not None:
            self._run(shard, Message(MessageKind.LEAVE, 0, worker))

    def _run(self, shard: Shard, message: Message) -> None:
        """Changes a shard and its copy."""
        with shard.lock:
            if not self._copies:
                shard.run(message)
            else:
                self._run_twice(shard, message)
        with self._changed:
            self._changed.notify_all()

    # --- copies --------------------------------------------------------------------------------------------

    def _after(self) -> int | None:
        """Returns the next server after this one that is not lost."""
        place = self._servers.index(self._rank)
        others = self._servers[place + 1 :] + self._servers[:place]
        return next((server for server in others if server not in self.lost), None)

    def _run_twice(self, shard: Shard, message: Message) -> None:
        """Sends a change to the copy while it makes the change here. Without a copy, begins one with the result."""
        holder = self._after()
        if holder is None or holder != shard.holder:
            shard.run(message)
            self._begin_copy(shard)
            return
        channel = self._copies[holder]
        copied = False
        with channel.turn:
            try:
                # The shard may change the message's tensors, or use them again.
                for work in channel.send(message, False):
                    work.wait()
            except Error:
                self._lose(holder)
            try:
                shard.run(message)
            finally:
                if holder not in self.lost:
                    copied = self._copied(channel, holder)
        if not copied:
            self._begin_copy(shard)

    def _copied(self, channel: Channel, holder: int) -> bool:
        """Waits for the receipt of a copy. Returns whether the copy has done the same as the shard."""
        try:
            return channel.receive(True, self.room).kind is MessageKind.DONE
        except Error:
            self._lose(holder)
            return False

    def _begin_copy(self, shard: Shard) -> None:
        """Begins a copy on the next server that can take it."""
        while True:
            shard.holder = holder = self._after()
            if holder is None:
                return
            channel = self._copies[holder]
            try:
                with channel.turn:
                    channel.send(Message(MessageKind.INSTALL, shard.number, payload=shard.snapshot()), False)
                    if self._copied(channel, holder):
                        return
            except Error:
                pass
            self._lose(holder)

    def _keep_copies(self, peer: int, channel: Channel) -> None:
        """Keeps copies of another server's shards until it says goodbye or is lost."""
        try:
            while True:
                message = channel.receive(False, self.room, FOREVER)
                if message.kind is MessageKind.BYE:
                    return
                channel.send(Message(self._copy(message), message.shard), True)
        except Error:
            self._lose(peer)
            with self._changed:
                self._no_more_copies.add(peer)
                self._changed.notify_all()

    def _copy(self, message: Message) -> MessageKind:
        """Does with the copy of a shard what its primary does."""
        try:
            if message.kind is MessageKind.INSTALL:
                replica = self._make(message.shard)
                replica.install(message.payload)
                self._replicas[message.shard] = replica
            else:
                self._replicas[message.shard].run(message)
            return MessageKind.DONE
        except Exception:  # of the optimizer, which probably fails on the primary, too
            return MessageKind.FAILED

    def _lose(self, peer: int) -> None:
        with self._changed:
            self.lost.add(peer)
            self._changed.notify_all()

    def _shard(self, number: int) -> Shard | None:
        """Returns a shard of which this server is the primary, or becomes it. None if its copy is not here."""
        if number in self._shards:
            return self._shards[number]
        first, own = number, self._servers.index(self._rank)
        before = self._servers[first:own] if first < own else self._servers[first:] + self._servers[:own]
        with self._changed:
            # A worker may have lost servers that are well. Two servers must not both be the primary.
            heir = self._changed.wait_for(lambda: self._no_more_copies.issuperset(before), self._patience)
            if number in self._shards or number not in self._replicas or not heir:
                return self._shards.get(number)
            shard = self._replicas.pop(number)
            shard.holder = None
            self._shards[number] = shard
            left = set(self._left)
        if number == 0:
            for worker in sorted(left):
                self._run(shard, Message(MessageKind.LEAVE, 0, worker, confirmed=END))
        with shard.lock:
            if shard.holder is None:
                self._begin_copy(shard)
        return shard
