"""A shard: parameters, their optimizer, and the gradients that wait for a step."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.training.foundation.bucket import allocate
from ringreduce.training.foundation.rows import Rows
from ringreduce.training.parameter_server.compensation import Compensation
from ringreduce.training.parameter_server.server_layout import ServerLayout
from ringreduce.training.parameter_server.stepper import ShardSettings, Stepper, averaged
from ringreduce.training.parameter_server.tickets import END, Tickets
from ringreduce.training.parameter_server.wire import Message, MessageKind

__all__ = ["Pool", "Shard"]


class Pool:
    """Memory for a shard's range of each part of the model, used again and again. Several threads may use it."""

    def __init__(self, layout: ServerLayout, shard: int) -> None:
        self._lengths = [(end - begin) for begin, end in (part.ranges[shard] for part in layout.parts)]
        self._likes = [part.bucket.like for part in layout.parts]
        self._free: list[list[Any]] = []

    def take(self) -> list[Any]:
        """Returns a tensor for each part, which peers can read without a copy."""
        try:
            return self._free.pop()
        except IndexError:
            sizes = zip(self._lengths, self._likes, strict=True)
            return [allocate(length, like.dtype, like.device) for length, like in sizes]

    def give(self, memory: list[Any] | None) -> None:
        if memory is not None:
            self._free.append(memory)


class Shard:
    """One shard. It changes only in :meth:`run`, and only by the messages that it runs.

    A copy that runs the same messages in the same order therefore has the same bits. A message that runs again changes
    nothing.

    Args:
        values: flat memory for each part of the model, with the first values.

    Attributes:
        lock: held by those who run a message or read.
        holder: the server that has the copy, or None.
        version: the number of steps of the optimizer.
    """

    def __init__(
        self, number: int, layout: ServerLayout, settings: ShardSettings, values: Sequence[Any]
    ) -> None:
        self.number, self._layout, self._settings = number, layout, settings
        self.lock = threading.RLock()
        self.holder: int | None = None
        self.pool = Pool(layout, number)
        self.version = self._clock = self._loaded = 0
        self.tickets = Tickets(settings.workers, settings.staleness)
        self._values = self.pool.take()
        for part, own, whole in zip(layout.parts, self._values, values, strict=True):
            own.copy_(part.of(whole, number))
        bounds = [table.ranges[number] for table in layout.tables]
        self._rows = [
            table.slot.parameter.detach()[begin:end].clone()
            for table, (begin, end) in zip(layout.tables, bounds, strict=True)
        ]
        self._changed = [torch.zeros(end - begin, dtype=torch.int64) for begin, end in bounds]
        self._seen: set[int] = set()  # the tickets whose gradients came, from the floor on
        self._waiting: dict[int, Message] = {}  # the gradients of the clock, with staleness 0
        self._compensation: Compensation | None = None
        if settings.compensation is not None:
            self._compensation = Compensation(settings.compensation, settings.decay)
        self._stepper = Stepper(layout, number, settings, self._values, self._rows)

    # --- changes -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, message: Message) -> None:
        """Changes the shard as a message asks. The shard then owns the message's tensors, which its pool made."""
        kind, worker = message.kind, message.worker
        if kind is MessageKind.PUSH:
            self._push(message)
        elif kind is MessageKind.ASK:
            wanted = None if message.ticket == END else message.ticket
            self.tickets.ask(worker, message.number, message.confirmed, wanted, message.until)
        elif kind is MessageKind.LEAVE:
            self.tickets.confirm(worker, message.confirmed)
            self.tickets.leave(worker)
            if self._compensation is not None:
                self._compensation.forget(worker)
        elif kind is MessageKind.CLOSE and message.clock > self._clock:
            self._close(message.clock, message.present)
        elif kind is MessageKind.MARK and self._compensation is not None:
            self._compensation.mark(worker, [*self._values, *self._rows])
        elif kind is MessageKind.LOAD and message.number > self._loaded:
            self._load(message)

    def _push(self, message: Message) -> None:
        new = message.ticket not in self._seen
        self._seen.add(message.ticket)
        self._seen = {ticket for ticket in self._seen if ticket >= message.floor}
        if new and self._settings.synchronous:
            self._waiting[message.ticket] = message
            return
        if new:
            if self._compensation is not None:
                self._compensation.apply(message, [*self._values, *self._rows])
            self._step(message)
        self.pool.give(message.dense)

    def _close(self, clock: int, present: Sequence[bool]) -> None:
        """Averages the gradients of the clock before this one, in the order of their tickets, and steps."""
        first = (clock - 1) * self._settings.workers
        counting = [first + place for place, counts in enumerate(present) if counts]
        messages = [self._waiting[ticket] for ticket in counting if ticket in self._waiting]
        if messages:
            self._step(averaged(messages))
        for message in self._waiting.values():
            self.pool.give(message.dense)
        self._waiting.clear()
        self._clock = clock

    def _step(self, message: Message) -> None:
        self._stepper.step(message)
        self.version += 1
        for changed, (indices, _) in zip(self._changed, message.rows, strict=True):
            changed[indices if self._settings.only_its_rows else slice(None)] = self.version

    # --- reading -------------------------------------------------------------------------------------------

    def needs_close(self, clock: int) -> bool:
        """Returns whether the gradients of the clocks before must be averaged before a pull of this clock."""
        return self._settings.synchronous and clock > self._clock

    @property
    def compensates(self) -> bool:
        return self._compensation is not None

    @torch.no_grad()
    def read(self, message: Message, into: list[Any] | None) -> Message:
        """Answers a pull: all values of the parts, and the rows that have changed since the message's version.

        Args:
            into: memory for the values. None: the answer has the shard's own memory if that will not change before the
                worker has pushed again, else memory from its pool.
        """
        dense = self._values
        if not self.lends(message) or into is not None:
            dense = self.pool.take() if into is None else into
            for copy, value in zip(dense, self._values, strict=True):
                copy.copy_(value)
        rows: list[Rows] = []
        for changed, values in zip(self._changed, self._rows, strict=True):
            indices = (changed > message.version).nonzero().flatten()
            rows.append((indices, values[indices]))
        return Message(MessageKind.DONE, self.number, version=self.version, dense=dense, rows=rows)

    def lends(self, message: Message) -> bool:
        """Returns whether the answer to a pull has the shard's own memory.

        With staleness 0, values change when all gradients of the next clock have come. Those who pull without a ticket
        bring none of them.
        """
        return self._settings.synchronous and message.ticket != END

    # --- saving --------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Returns the pickled state of the optimizer. See Stepper.state."""
        return pickle.dumps(self._stepper.state())

    def _load(self, message: Message) -> None:
        """Takes this shard's values, the state of the optimizer and its options from a worker."""
        values, states, groups = pickle.loads(message.payload)
        for own, value in zip([*self._values, *self._rows], values, strict=True):
            own.copy_(value)
        self._stepper.load(states, groups)
        self._loaded = message.number
        self.version += 1
        for changed in self._changed:
            changed.fill_(self.version)

    SAVED = (
        "version", "_clock", "_loaded", "tickets", "_changed", "_seen", "_waiting", "_compensation",
    )  # fmt: skip

    def snapshot(self) -> bytes:
        """Returns everything that a copy needs."""
        optimizer = self._stepper.optimizer.state_dict()
        saved = {name: getattr(self, name) for name in self.SAVED}
        return pickle.dumps((saved, [*self._values, *self._rows], optimizer))

    @torch.no_grad()
    def install(self, snapshot: bytes) -> None:
        """Becomes a copy of the shard that made the snapshot."""
        saved, values, optimizer = pickle.loads(snapshot)
        for name, value in saved.items():
            setattr(self, name, value)
        for own, value in zip([*self._values, *self._rows], values, strict=True):
            own.copy_(value)
        self._stepper.optimizer.load_state_dict(optimizer)
