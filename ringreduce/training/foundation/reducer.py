"""Follows a backward pass: sends each bucket when it is complete, and waits for all of them at the end."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.errors import Error
from ringreduce.training.foundation.agreement import Verdict, some_names
from ringreduce.training.foundation.assignment import Cut
from ringreduce.training.foundation.bucket import Bucket, Slot
from ringreduce.training.foundation.exchange import Exchange, UnderWay
from ringreduce.training.foundation.join import BACKWARD, Join
from ringreduce.training.foundation.timings import StepTimings
from ringreduce.training.foundation.usage import Usage, tensors_in

__all__ = ["Keep", "Reducer"]


class Keep(Enum):
    """The value of ``parameter.grad`` after a backward pass."""

    VIEW = "the bucket's memory"
    COPY = "a tensor of its own"
    NOTHING = "None"


class Reducer:
    """The gradients of parameters, and their exchange.

    Every synchronised backward pass makes the same calls on every rank, even if it fails: all buckets in order, then
    the ranks' verdicts. Ranks therefore stay in step even if one lacks a gradient or fails halfway.

    Args:
        owner: the class that averages, for messages.
        exchange: averages a bucket.
        usage: knows which gradients a backward pass computes.
        keep: what ``parameter.grad`` is afterwards.
        cut: puts parameters into buckets. None if the buckets are passed to :meth:`follow` and never change.
        waits: whether the end of a backward pass waits for the averages. If not, :meth:`settle` does.
    """

    def __init__(
        self, comm: Communicator, owner: str, exchange: Exchange, usage: Usage, keep: Keep, cut: Cut | None = None,
        waits: bool = True,
    ) -> None:  # fmt: skip
        self.comm = comm
        self.averaged_by = owner
        self.exchange = exchange
        self.timings = StepTimings()  # of the last backward pass, if its end waits
        self.join: Join | None = None
        self.synchronise = True  # whether the next backward pass exchanges gradients
        self.slots: list[Slot] = []
        self.buckets: list[Bucket] = []
        self.hooks: list[Any] = []
        self.restarts = 0  # calls since the last verdict by which every rank restarts a step
        self._usage, self._keep, self._cut, self._waits = usage, keep, cut, waits
        self._launching = threading.Lock()  # autograd has a thread for each GPU
        self._end_queued: Callable[[], Any] = _none
        self._running = self._shadowing = False
        self._next = 0  # the bucket that is sent next
        self._sent: list[tuple[Bucket, float, UnderWay]] = []
        self._verdict: Verdict | None = None  # of a backward pass whose buckets are all sent

    def follow(self, slots: Sequence[Slot], buckets: Sequence[Bucket]) -> None:
        """Adds these parameters."""
        self.slots += slots
        self.buckets += buckets
        for slot in slots:
            came = partial(self._gradient_came, slot)
            self.hooks.append(slot.parameter.register_post_accumulate_grad_hook(came))

    def unhook(self) -> None:
        for hook in self.hooks:
            hook.remove()

    # --- the backward pass ---------------------------------------------------------------------------------

    def begin_forward(self, synchronise: bool) -> None:
        """Begins a forward pass. synchronise: whether its backward pass exchanges gradients."""
        self.settle(quiet=True)  # failures of this rank have been raised already
        self.exchange.begin_forward(synchronise, self.buckets)
        self.synchronise = synchronise

    def end_forward(self, outputs: Any) -> None:
        """Ends a forward pass."""
        if not self._follows:
            return
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        self._usage.end_forward(tensors, self.slots)
        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(self._queue_end)

    @property
    def _follows(self) -> bool:
        return self.synchronise or self.exchange.has_local_passes

    def _queue_end(self, _gradient: Any = None) -> None:
        """Queues _end for the end of the backward pass.

        The outputs' gradients call it, because they come in the outermost backward pass. A parameter's gradient may
        come in an inner one, of re-entrant checkpointing, which ends sooner.
        """
        if self._follows and self._end_queued() is None:
            end = partial(self._end)
            torch.autograd.Variable._execution_engine.queue_callback(end)
            self._end_queued = weakref.ref(end)  # autograd drops it if the backward pass fails

    def _gradient_came(self, slot: Slot, parameter: Any) -> None:
        if not self._follows:
            return
        if self._end_queued() is None:
            if self._running:
                raise Error(f"{self.averaged_by}: the last backward pass failed: call zero_grad() first")
            self._queue_end()
        if not self.synchronise:
            return
        if not self._running:
            self._begin()
        self._take(slot)
        if self._cut is not None:
            self._cut.note(slot)
        slot.came += 1
        if slot.came == slot.expected:
            self._ready(slot)
        elif slot.came > slot.expected and slot.bucket.left == 0:
            raise Error(
                f"{self.averaged_by}: parameter {slot.name} got one more gradient in this backward pass after its "
                f"bucket was sent{self._usage.again}"
            )

    def _begin(self) -> None:
        if self.join is not None and not self._shadowing:
            self.join.announce(BACKWARD)
        self._running = True
        for bucket in self.buckets:
            bucket.left = len(bucket.slots)
        for slot in self.slots:
            slot.came = 0
        if self._verdict is not None:
            self._finish(self._verdict)  # of the previous backward pass
        for slot in self._usage.begin(self.slots):
            self._fill(slot)
            slot.came = 1
            self._ready(slot)

    def _take(self, slot: Slot) -> None:
        if slot.sparse:
            return
        if slot.bucket.buffer is None:
            self.exchange.give_memory(slot.bucket)
        if slot.parameter.grad is slot.view:
            return
        slot.take(more=self._keep is Keep.NOTHING and slot.came > 0)
        if self._keep is not Keep.COPY:
            slot.parameter.grad = slot.view if self._keep is Keep.VIEW else None

    def _fill(self, slot: Slot) -> None:
        """Substitutes a gradient that this backward pass does not compute: with the existing gradient, or zeros."""
        if slot.sparse or slot.parameter.grad is not None:
            self._take(slot)
            return
        if slot.bucket.buffer is None:
            self.exchange.give_memory(slot.bucket)
        slot.view.zero_()

    def _ready(self, slot: Slot) -> None:
        slot.bucket.left -= 1
        if slot.bucket.left == 0:
            self._send()

    def _send(self) -> None:
        """Sends all complete buckets whose turn it is. The order is the same on all ranks."""
        with self._launching:
            while self._next < len(self.buckets) and self.buckets[self._next].left == 0:
                bucket = self.buckets[self._next]
                self._next += 1
                self._sent.append((bucket, time.monotonic(), self.exchange.begin(bucket)))

    # --- its end -------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._end_queued = _none
        if not self.synchronise:
            self.exchange.end_local_pass(self.slots, self._fill)
            return
        if not self._running and self._usage.reaches_nothing(self.slots):
            self._begin()  # this rank has no gradients, but other ranks wait for it
        if self._running:
            self._complete()
            if self._waits:
                self.settle()

    def shadow(self) -> None:
        """Contributes zeros to a backward pass of the ranks that have data. Leaves no gradients."""
        for slot in self.slots:
            slot.parameter.grad = None
        self._shadowing = True
        self._begin()
        self._complete()
        self.settle()

    def settle(self, quiet: bool = False) -> None:
        """Waits for the averages of all backward passes so far.

        After an exception in a backward pass, it sends the remaining buckets, because other ranks may wait for them.

        Raises:
            Error: the last backward pass failed on a rank, and quiet is False.
        """
        ended, self._end_queued = self._end_queued, _none
        if ended is not _none and ended() is None and self.synchronise and not self._running:
            self._begin()  # the pass reached the outputs, but no parameter
        if self._running:
            self._complete("its backward pass failed")
        if self._verdict is not None:
            self._finish(self._verdict, quiet)

    def _complete(self, failure: str = "") -> None:
        """Sends the remaining buckets and this rank's verdict."""
        late = [slot for slot in self.slots if slot.came < slot.expected]
        problem = failure or ("" if self._shadowing else self._missing(late))
        used = [self._is_used(slot) for slot in self.slots] if self._usage.asks else None
        for bucket in self.buckets[self._next :]:
            for slot in bucket.slots:
                if slot.came < slot.expected:
                    self._fill(slot)
                    self._ready(slot)
        self._running = False
        self._verdict = Verdict(self.comm, problem, self.restarts, used)
        self.restarts = 0

    def _is_used(self, slot: Slot) -> bool:
        came = self._keep is Keep.NOTHING and slot.came > 0
        return came or slot.parameter.grad is not None or slot.number in self.exchange.used_before

    def _missing(self, late: Sequence[Slot]) -> str:
        """Returns a message with the gradients that are missing, or nothing."""
        names = list(dict.fromkeys([*self.exchange.missed_before, *(slot.name for slot in late)]))
        if not names or self._usage.allows_missing():
            return ""
        return f"the backward pass computed no gradient for {some_names(names)}{self._usage.hint}"

    def _finish(self, verdict: Verdict, quiet: bool = False) -> None:
        shadowing, asked = self._shadowing, self._usage.asks
        try:
            for bucket, submitted, under_way in self._sent:
                self.exchange.meter.wait(bucket, submitted, under_way)
            self.exchange.meter.wait_for(verdict.wait)
            problems = verdict.problems()
        finally:
            self._verdict, self._shadowing = None, False
            self._next, self._sent = 0, []
            self.exchange.end_pass()
            if self._waits:
                self.timings = self.exchange.meter.take()
        if problems:
            self._give_up(problems, quiet)
            return
        used = {self.slots[place].number for place in verdict.used_by_any} if asked else None
        self._attach(self._usage.agreed(used))
        if not shadowing:
            self._usage.passed(self.slots)
        self._recut()

    def _give_up(self, problems: str, quiet: bool) -> None:
        self.exchange.forget()
        if self._cut is not None:
            self._cut.forget()
        if not quiet:
            raise Error(f"{self.averaged_by}: {problems}")

    def _attach(self, used_by_any: set[int]) -> None:
        """Sets the averaged gradients, also of parameters that only other ranks have used."""
        if self._keep is Keep.NOTHING or (self._keep is Keep.VIEW and not used_by_any):
            return
        for slot in self.slots:
            gradient = slot.parameter.grad
            if slot.sparse:
                continue
            if gradient is None and slot.number in used_by_any:
                slot.parameter.grad = slot.view if self._keep is Keep.VIEW else slot.view.clone()
            elif self._keep is Keep.COPY and gradient is not None:
                gradient.copy_(slot.view)

    def _recut(self) -> None:
        """After the first backward pass, makes buckets in the order in which the gradients came."""
        if self._cut is None or not self._cut.is_to_come:
            return
        self.buckets = self._cut.again(self.comm, 0 if self.join is None else self.join.root)
        for slot in self.slots:
            slot.view = None
        for slot in self.slots:
            if self._keep is Keep.VIEW and slot.parameter.grad is not None:
                self._take(slot)


def _none() -> None:
    """Stands for a weak reference whose object is gone."""
