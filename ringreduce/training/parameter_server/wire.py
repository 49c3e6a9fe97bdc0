"""The messages between workers and servers, and the channels that carry them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import Communicator
from ringreduce.communicator.work import Work
from ringreduce.training.foundation.rows import Rows
from ringreduce.training.parameter_server.server_layout import EmbeddingTable, ServerLayout
from ringreduce.training.parameter_server.tickets import END

__all__ = ["Channel", "Format", "Message", "MessageKind", "connect"]


class MessageKind(IntEnum):
    """The kinds of requests and answers."""

    ASK = auto()  # for a ticket
    PUSH = auto()  # the gradients of a ticket
    PULL = auto()  # the parameters
    STATE = auto()  # the state of the optimizer
    LOAD = auto()  # takes parameters and a state
    LEAVE = auto()  # the worker ends
    BYE = auto()  # nothing more comes through this channel
    # From a shard to its copy, besides the above that change it:
    CLOSE = auto()  # averages the gradients of a clock
    MARK = auto()  # notes the values that a worker pulls
    INSTALL = auto()  # begins a copy
    # Answers:
    DONE = auto()
    LOST = auto()  # the shard is not here, and its copy is not either
    FAILED = auto()  # the payload says how


@dataclass
class Message:
    """A message. Fields that its kind does not use have their defaults.

    Attributes:
        dense: a flat tensor for each part of the model that the shard has a range of.
        rows: the rows of each table that travel.
        options: the numbers in the optimizer's parameter groups.
        used: which parameters have a gradient.
    """

    kind: MessageKind
    shard: int = 0
    worker: int = -1
    ticket: int = END
    clock: int = 0
    number: int = 0
    confirmed: int = END
    until: int = END
    floor: int = 0
    version: int = -1
    present: Sequence[bool] = ()
    options: Sequence[float] = ()
    used: Sequence[bool] = ()
    dense: list[Any] | None = None
    rows: list[Rows] = field(default_factory=list)
    payload: bytes = b""


NUMBERS = (
    "kind", "shard", "worker", "ticket", "clock", "number", "confirmed", "until", "floor", "version",
)  # fmt: skip


class Format:
    """Packs what precedes the tensors of a message: int64 words, as many in each message of a model."""

    def __init__(self, workers: int, options: int, layout: ServerLayout) -> None:
        lengths = (len(NUMBERS), 2, len(layout.tables), workers, len(layout.slots), options)
        ends = np.cumsum(lengths).tolist()
        self._places = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        self.length: int = ends[-1]
        self.tables: list[EmbeddingTable] = layout.tables

    def pack(self, message: Message) -> Any:
        words = np.zeros(self.length, np.int64)
        numbers, sizes, counts, present, used, options = self._places
        words[numbers] = [getattr(message, name) for name in NUMBERS]
        words[sizes] = message.dense is not None, len(message.payload)
        if message.rows:
            words[counts] = [len(indices) for indices, _ in message.rows]
        for place, values in ((present, message.present), (used, message.used)):
            if values:
                words[place] = values
        if message.options:
            words[options] = np.array(message.options, np.float64).view(np.int64)
        return words

    def unpack(self, words: Any) -> tuple[Message, bool, int, list[int]]:
        """Returns a message without its tensors, whether dense ones follow, and the sizes of payload and tables."""
        numbers, sizes, counts, present, used, options = self._places
        kind, *others = words[numbers].tolist()
        message = Message(MessageKind(kind), *others)
        message.present = words[present].astype(bool).tolist()
        message.used = words[used].astype(bool).tolist()
        message.options = words[options].view(np.float64).tolist()
        dense, payload = words[sizes].tolist()
        return message, bool(dense), payload, words[counts].tolist()


class Channel:
    """Two ranks' messages of one kind each way: requests and their replies, or copies and their receipts."""

    def __init__(self, comm: Communicator, format: Format) -> None:
        self.comm, self._format = comm, format
        self._peer = 1 - comm.rank
        self.turn = threading.Lock()  # for those who send something and wait for the answer

    def send(self, message: Message, answer: bool) -> list[Work[None]]:
        """Begins to send a message. Its tensors must not change until all of the returned works are done."""
        tensors: list[Any] = [self._format.pack(message)]
        if message.payload:
            tensors.append(np.frombuffer(message.payload, np.uint8))
        tensors += [tensor for tensor in message.dense or () if tensor.numel()]
        for indices, values in message.rows:
            tensors += [indices, values] if len(indices) else []
        return [self.comm.send(x, self._peer, tag=int(answer), async_op=True) for x in tensors]

    def receive(
        self, answer: bool, room: Callable[[Message], list[Any]], timeout: float | None = None
    ) -> Message:
        """Receives a message.

        Args:
            room: returns the tensors that receive the dense parts of a message.
            timeout: the longest wait for the begin of the message, in seconds.
        """
        words = np.empty(self._format.length, np.int64)
        self._receive(words, answer, timeout)
        message, dense, payload, counts = self._format.unpack(words)
        if payload:
            content = np.empty(payload, np.uint8)
            message.payload = self._receive(content, answer).tobytes()
        if dense:
            message.dense = room(message)
            for tensor in message.dense:
                if tensor.numel():
                    self._receive(tensor, answer)
        for table, count in zip(self._format.tables, counts, strict=True):
            indices = torch.empty(count, dtype=torch.int64)
            values = torch.empty((count, *table.row), dtype=table.slot.parameter.dtype)
            if count:
                self._receive(indices, answer)
                self._receive(values, answer)
            message.rows.append((indices, values))
        return message

    def _receive(self, x: Any, answer: bool, timeout: float | None = None) -> Any:
        return self.comm.recv(x, self._peer, tag=int(answer), timeout=timeout)


def matchings(size: int) -> list[list[tuple[int, int]]]:
    """Returns rounds of pairs, in which every two of the ranks meet once: a round-robin tournament."""
    places = [*range(size), *([size] if size % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < size])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def connect(
    comm: Communicator, ones: Sequence[int], others: Sequence[int], format: Format
) -> dict[int, Channel]:
    """Makes a communicator for each pair of one rank and another, so that a death breaks only those of the dead rank.

    Every rank must call it.

    Returns:
        This rank's channels, by the rank at the other end.
    """
    channels = {}
    for pairs in matchings(comm.size):
        chosen = [(a, b) for a, b in pairs if (a in ones and b in others) or (b in ones and a in others)]
        if not chosen:
            continue
        own = next((pair for pair in chosen if comm.rank in pair), None)
        child = comm.split(None if own is None else own[0])
        if own is not None and child is not None:
            channels[sum(own) - comm.rank] = Channel(child, format)
    return channels
