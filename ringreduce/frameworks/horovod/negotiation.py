"""Negotiation: ranks agree which operations all of them have submitted, and run these in the same order.

Ranks submit operations in any order; the name says which belong together. In a cycle, every rank tells what it has
submitted. A name that was used before with the same signature has a number in a cache, and a cycle in which nothing
else was submitted is one all-reduce of a few bytes: the bitwise AND of the ranks' sets of numbers. Other names are
announced in full. This is the response cache of Horovod (Sergeev and Del Balso, arXiv 1802.05799, and
https://horovod.readthedocs.io), without its coordinator: every rank draws the same conclusions from the same messages.

A rank joins cycles as long as it has submitted something that is not complete. No operation can complete without it, so
the other ranks lose nothing if they wait for it within a cycle.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.frameworks.horovod.cache import Cache
from ringreduce.frameworks.horovod.internal_error import HorovodInternalError
from ringreduce.frameworks.horovod.request import Operation, Request, Signature, describe, stand_in

__all__ = ["FOREVER", "JOIN", "Negotiator", "ranks_text"]

FOREVER = 1e8  # seconds: ranks may compute for any time before they submit
JOIN = "join"
MISMATCH = "mismatch"  # the kind of an operation that ranks disagree about
WITH_JOINED = ("allreduce", "barrier")  # the kinds that complete after a rank has joined
WORD = 8  # bytes


# An operation that all ranks have submitted, but those that have joined: name, signature, this rank's request (None on
# ranks that have joined), and whether a rank takes no part because it has joined.
Ready = tuple[str, Signature, "Request | None", bool]


class Negotiator:
    """The operations of a process set on this rank.

    Any thread may call :meth:`submit` and :meth:`fail`, and one at a time :meth:`cycle`.

    Args:
        comm: the ranks of the set. Only this object uses it.
        ranks: their numbers in the whole job, for messages.
        capacity: the number of names in the cache.

    Attributes:
        pending: this rank's requests that are not done, by name.
        failure: why the set is unusable, or None.
        on_cycle, on_run: called, if a timeline is recorded, when a cycle begins, and after an operation with the kind,
            the request, and the times at which its negotiation ended and it ended itself.
    """

    def __init__(self, comm: Communicator, ranks: Sequence[int], capacity: int) -> None:
        self.comm, self.ranks = comm, list(ranks)
        self.pending: dict[str, Request] = {}
        self.failure: HorovodInternalError | None = None
        self.on_cycle: Callable[[float], None] | None = None
        self.on_run: Callable[[str, Request, float, float], None] | None = None
        self._lock = threading.Lock()
        self._behind: dict[str, deque[Request]] = {}  # requests that wait for their name to be free
        self._cache = Cache(capacity)
        self._bits = 0  # the cache's numbers of what this rank has submitted
        self._news: list[tuple[str, Signature]] = []  # to be announced in full
        self._announced: dict[str, dict[int, Signature]] = {}  # by name and rank
        self._joined: list[int] = []
        self._words = np.zeros(0, np.uint64)
        self._memory = memoryview(b"")

    # --- what this rank submits ----------------------------------------------------------------------------

    def submit(self, request: Request, in_turn: bool = False) -> None:
        """Adds an operation.

        Args:
            in_turn: whether to wait for the name if it is in use.

        Raises:
            ValueError: the name is in use, and in_turn is False.
            HorovodInternalError: the set is unusable.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if request.name not in self.pending:
                self._begin(request)
            elif in_turn:
                self._behind.setdefault(request.name, deque()).append(request)
            else:
                raise ValueError(
                    f"name {request.name!r} is in use by an operation that is not complete: synchronize its handle "
                    "first, or choose another name"
                )

    def _begin(self, request: Request) -> None:
        self.pending[request.name] = request
        number = self._cache.number(request.name, request.operation.signature)
        if number is None:
            self._news.append((request.name, request.operation.signature))
        else:
            self._bits |= 1 << number

    def _end(self, request: Request, result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self.pending.pop(request.name, None)  # none after a failure
            if self._behind and (behind := self._behind.get(request.name)):
                self._begin(behind.popleft())
        request.finish(result, error)

    def fail(self, reason: str) -> None:
        """Ends all operations of this rank, and those of the ranks that wait for it, with an error."""
        with self._lock:
            if self.failure is None:
                self.failure = HorovodInternalError(reason)
            ended = [
                *self.pending.values(),
                *(request for queue in self._behind.values() for request in queue),
            ]
            self.pending.clear()
            self._behind.clear()
        self.comm._c.leave()
        for request in ended:
            request.finish(error=self.failure)

    # --- a cycle -------------------------------------------------------------------------------------------

    def cycle(self) -> bool:
        """Negotiates, and runs what all ranks have submitted. Every rank calls it.

        Returns:
            Whether an operation has ended.
        """
        if self.on_cycle is not None:
            self.on_cycle(time.monotonic())
        try:
            return self._cycle()
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
            return True

    def _cycle(self) -> bool:
        absent = bool(self._joined)
        with self._lock:
            news, self._news = self._news, []
            # A rank that has joined stands back for every number.
            bits = (1 << len(self._cache)) - 1 if absent and self.comm.rank in self._joined else self._bits
        common = self._common(bits << 1 | (not news))
        numbers = common >> 1
        if common & 1 and not absent and numbers and not numbers & (numbers - 1):
            return self._run_one(numbers.bit_length() - 1)
        ready: list[Ready] = []
        if numbers:
            with self._lock:
                self._bits &= ~numbers
                while numbers:
                    number = (numbers & -numbers).bit_length() - 1
                    numbers &= numbers - 1
                    name, signature = self._cache.use(number)
                    ready.append((name, signature, self.pending.get(name), absent))
        if not common & 1:
            everybodys = self.comm.all_gather_object(news, timeout=FOREVER)
            with self._lock:
                ready += self._heard(everybodys)
        self._run(ready)
        return bool(ready)

    def _common(self, bits: int) -> int:
        """Returns the bitwise AND of all ranks' bits: one for "no news", then one for each number of the cache."""
        length = (WORD * 8 + len(self._cache)) // (WORD * 8) * WORD
        if length != self._words.nbytes:
            self._words = np.zeros(length // WORD, np.uint64)
            self._memory = self._words.data.cast("B")
        self._memory[:] = bits.to_bytes(length, "little")
        self.comm.all_reduce(self._words, "band", timeout=FOREVER)
        return int.from_bytes(self._memory, "little")

    def _heard(self, everybodys: Sequence[Sequence[tuple[str, Signature]]]) -> list[Ready]:
        """Takes in all ranks' announcements. Returns the operations that all ranks have announced now."""
        for rank, news in enumerate(everybodys):
            for name, signature in news:
                if name == JOIN:
                    self._joined.append(rank)
                else:
                    self._forget(name)
                    self._announced.setdefault(name, {})[rank] = signature
        ready: list[Ready] = []
        for name, signatures in list(self._announced.items()):
            if len(signatures.keys() | self._joined) < self.comm.size:
                continue
            del self._announced[name]
            first = next(iter(signatures.values()))
            if all(signature == first for signature in signatures.values()):
                excess = self._cache.excess()
                if excess is not None:
                    self._forget(excess)
                self._cache.add(name, first)
            else:
                first = (MISMATCH, (("text", self._difference(name, signatures)),), ())
            ready.append((name, first, self.pending.get(name), len(signatures) < self.comm.size))
        if len(self._joined) == self.comm.size:
            last: Any = (JOIN, (("last", self._joined[-1]),), ())
            ready.append((JOIN, last, self.pending.get(JOIN), True))
            self._joined = []
        return ready

    def _forget(self, name: str) -> None:
        """Takes a name out of the cache. If this rank has submitted it by its number, it announces it in full."""
        number = self._cache.forget(name)
        if number is not None and self._bits >> number & 1:
            self._bits &= ~(1 << number)
            self._news.append((name, self.pending[name].operation.signature))

    def _difference(self, name: str, signatures: dict[int, Signature]) -> str:
        ranks: dict[str, list[int]] = {}
        for rank, signature in signatures.items():
            ranks.setdefault(describe(signature), []).append(self.ranks[rank])
        whose = "; ".join(f"{ranks_text(having)}: {text}" for text, having in ranks.items())
        return f"the ranks disagree about operation {name!r}: {whose}"

    def _run_one(self, number: int) -> bool:
        """Runs the operation of a number of the cache: the usual case of a blocking call, in fewer steps."""
        with self._lock:
            self._bits &= ~(1 << number)
            request = self.pending[self._cache.use(number)[0]]
        agreed = time.monotonic()
        try:
            self._ran(request, agreed, request.operation.run(self.comm))
        except (TypeError, ValueError) as refused:
            self._ran(request, agreed, error=refused)
        return True

    def _run(self, ready: Sequence[Ready]) -> None:
        """Runs operations. Those with the same key run as one."""
        agreed = time.monotonic()
        groups: dict[Hashable, list[tuple[Operation, Request | None]]] = {}
        for place, (name, signature, request, absent) in enumerate(ready):
            kind = signature[0]
            if kind == JOIN:
                assert request is not None
                self._end(request, self.ranks[signature[1][0][1]])
            elif kind == MISMATCH:
                self._refuse(request, signature[1][0][1])
            elif absent and kind not in WITH_JOINED:
                self._refuse(request, f"{kind} {name!r} cannot complete, because a rank has called join()")
            else:
                operation = stand_in(signature) if request is None else request.operation
                key = place if operation.key is None else operation.key
                groups.setdefault(key, []).append((operation, request))
        for members in groups.values():
            self._run_group(members, agreed)

    def _refuse(self, request: Request | None, reason: str) -> None:
        if request is not None:
            self._end(request, error=HorovodInternalError(reason))

    def _run_group(self, members: Sequence[tuple[Operation, Request | None]], agreed: float) -> None:
        first, *others = [operation for operation, _ in members]
        error: Exception | None = None
        try:
            results = first.run_with(self.comm, others) if others else [first.run(self.comm)]
        except (TypeError, ValueError) as refused:
            results, error = [None] * len(members), refused
        for (_, request), result in zip(members, results, strict=True):
            if request is not None:
                self._ran(request, agreed, result, error)

    def _ran(
        self, request: Request, agreed: float, result: Any = None, error: Exception | None = None
    ) -> None:
        if self.on_run is not None:
            self.on_run(request.operation.signature[0], request, agreed, time.monotonic())
        self._end(request, result, error)


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns "rank 3", or "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
