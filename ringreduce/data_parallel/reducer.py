"""Follows a backward pass: sends each bucket once its gradients are there, and waits for all at the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.assignment import assign
from ringreduce.data_parallel.bucket import Bucket, Slot
from ringreduce.data_parallel.exchange import Exchange, UnderWay
from ringreduce.data_parallel.outputs import parameters_reached, tensors_in
from ringreduce.data_parallel.timings import BucketTiming, StepTimings
from ringreduce.data_parallel.verdict import Verdict, some_names
from ringreduce.errors import Error

__all__ = ["Reducer"]


class Reducer:
    """The gradients of a model's parameters, and their exchange.

    Every synchronised backward pass makes the same calls on every rank, whatever becomes of it: all buckets in order,
    then the ranks' verdicts. So ranks stay in step even where one lacks a gradient or has failed on its way.

    Args:
        named: names and parameters, in the model's order, the same on all ranks.
        first, limit: bytes of the first bucket and of the others.
        unused: parameters may be without a gradient.
        static: which ones are, and how often hooks are called, is the same in every backward pass.
    """

    averaged_by = "DataParallel"

    def __init__(
        self,
        comm: Communicator,
        named: Sequence[tuple[str, Any]],
        first: float,
        limit: float,
        exchange: Exchange,
        unused: bool = False,
        static: bool = False,
    ) -> None:
        self.comm = comm
        self.exchange = exchange
        self.slots = [Slot(number, name, parameter) for number, (name, parameter) in enumerate(named)]
        self.synchronise = True  # whether the next backward pass, that is
        self._follows = True  # whether it matters which gradients a backward pass brings
        self.before_backward: Callable[[], Any] | None = None
        self.timings = StepTimings()
        self.root = 0  # whose order of gradients counts
        self._limits = (first, limit)
        self._unused, self._static = unused, static
        self._used_by_any: set[int] | None = None  # numbers, of the last backward pass of which it was asked
        self._counting = static
        if static:
            for slot in self.slots:
                slot.expected = math.inf
        # Numbers, in the order of their gradients; None once it is learned.
        self._arrivals: list[int] | None = []
        self._skipped: set[int] | None = None  # numbers of parameters that the outputs do not depend on
        self._launching = threading.Lock()  # autograd has a thread for each GPU
        self._reset()
        self._make_buckets(range(len(self.slots) - 1, -1, -1))
        self.hooks = [
            slot.parameter.register_post_accumulate_grad_hook(partial(self._gradient_came, slot))
            for slot in self.slots
        ]

    def _make_buckets(self, order: Sequence[int]) -> None:
        parameters = [slot.parameter for slot in self.slots]
        cut = assign(
            order, [p.nbytes for p in parameters], [(p.dtype, p.device) for p in parameters], *self._limits
        )
        self.buckets = [
            self._new_bucket(index, [self.slots[number] for number in members], index == len(cut) - 1)
            for index, members in enumerate(cut)
        ]

    def _new_bucket(self, index: int, slots: Sequence[Slot], last: bool) -> Bucket:
        return Bucket(index, slots, last)

    def _reset(self) -> None:
        self._end_queued = self._running = False
        self._next = 0  # the bucket that is sent next
        self._sent: list[tuple[Bucket, float, UnderWay]] = []

    # --- the backward pass ---------------------------------------------------------------------------------

    def begin_forward(self, synchronise: bool) -> None:
        """A forward pass begins whose backward pass is to exchange gradients, or is not."""
        self.settle()
        self.synchronise = self._follows = synchronise

    def end_forward(self, outputs: Any) -> None:
        """A forward pass is over."""
        if not self._follows:
            return
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        if self._unused:
            # Where outputs are not found, in objects of unknown kinds, it shows at the end what has been used.
            reached = parameters_reached(tensors)
            skipped = {slot.number for slot in self.slots if tensors and id(slot.parameter) not in reached}
            self._skipped = skipped if self._skipped is None else self._skipped & skipped
        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(self.queue_end)

    def queue_end(self, _gradient: Any = None) -> None:
        """Has _end called when the backward pass is over.

        The outputs' gradients call it, in the outermost backward pass: a parameter's may come in one within it, of
        re-entrant checkpointing, which ends sooner. Being called twice does no harm.
        """
        if self._follows:
            self._end_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _gradient_came(self, slot: Slot, parameter: Any) -> None:
        if parameter.grad is not slot.view:
            slot.take()
        if not self._follows:
            return
        if not self._running:
            self._begin()
        if self._arrivals is not None:
            self._arrivals.append(slot.number)
        slot.came += 1
        if slot.came == slot.expected:
            self._ready(slot)
        elif slot.came > slot.expected:
            raise Error(
                f"DataParallel: parameter '{slot.name}' got one more gradient in this backward pass after its bucket "
                "may have been sent. Where each step does so (re-entrant checkpointing), static_graph=True helps"
            )

    def _begin(self) -> None:
        if not self._end_queued:
            self.queue_end()
        if self.before_backward is not None:
            self.before_backward()
        self._restart()

    def _restart(self) -> None:
        self._running = True
        for bucket in self.buckets:
            bucket.left = len(bucket.slots)
        for slot in self.slots:
            slot.came = 0
        skipped, self._skipped = self._skipped, None
        for number in skipped or ():
            self._do_without(self.slots[number])
        if self._static and not self._counting:
            for slot in self.slots:
                if slot.expected == 0:
                    self._do_without(slot)

    def _do_without(self, slot: Slot) -> None:
        slot.fill()
        slot.came = 1
        self._ready(slot)

    def _ready(self, slot: Slot) -> None:
        bucket = slot.bucket
        bucket.left -= 1
        if bucket.left == 0:
            self._send()

    def _send(self) -> None:
        """All buckets that are ready and whose turn it is: the order is the same on all ranks."""
        with self._launching:
            while self._next < len(self.buckets) and self.buckets[self._next].left == 0:
                bucket = self.buckets[self._next]
                self._next += 1
                self._sent.append((bucket, time.monotonic(), self.exchange.start(bucket)))

    # --- its end -------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._running and self._skipped is not None and len(self._skipped) == len(self.slots):
            self._begin()  # this rank has no gradients, but others wait for it
        if self._running:
            self._finish("")
        else:  # torch.autograd.grad() for others than our parameters
            self._reset()

    def settle(self) -> None:
        """Ends a backward pass that an exception has ended: others may wait for what it has not sent."""
        if self._running:
            self._finish("its backward pass failed")
        else:
            self._reset()

    def shadow(self) -> None:
        """Takes part in a backward pass of ranks that have data, with zeros. Leaves no gradients."""
        for slot in self.slots:
            slot.parameter.grad = None
        self._restart()
        self._finish("", shadowing=True)

    def _finish(self, failure: str, shadowing: bool = False) -> None:
        asked = self._unused or (self._static and self._used_by_any is None)
        problem = failure or ("" if shadowing else self._missing())
        try:
            for slot in self._late():
                slot.fill()
                self._ready(slot)
            verdict = Verdict(self.comm, problem, self._used() if asked else None)
            self._wait(verdict)
            problems = verdict.problems()
        finally:
            self._reset()
        if problems:
            self._arrivals = None if self._arrivals is None else []
            if failure:  # its cause has been raised already
                return
            raise Error(f"DataParallel: {problems}")
        if asked:
            self._used_by_any = verdict.used_by_any
        if self._used_by_any is not None:
            self._attach(self._used_by_any)
        if not shadowing:
            self._count()
        if self._arrivals is not None:
            self._learn_order(self._arrivals)

    def _late(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.came < slot.expected]

    def _used(self) -> list[bool]:
        return [slot.parameter.grad is not None for slot in self.slots]

    def _missing(self) -> str:
        """Says which gradients should have come and have not."""
        names = [] if self._unused or self._counting else self._missing_names()
        if not names:
            return ""
        hint = "the graph is not static" if self._static else "find_unused_parameters=True allows it"
        return f"the backward pass brought no gradient for {some_names(names)} ({hint})"

    def _missing_names(self) -> list[str]:
        return [slot.name for slot in self._late()]

    def _wait(self, verdict: Verdict) -> None:
        waits = []
        for wait in [*(under_way.finish for _, _, under_way in self._sent), verdict.wait]:
            begin = time.monotonic()
            wait()
            waits.append((begin, time.monotonic()))
        buckets = [
            BucketTiming(bucket.index, bucket.buffer.nbytes, submitted, *under_way.times())
            for bucket, submitted, under_way in self._sent
        ]
        self.timings = StepTimings(buckets, waits)

    def _attach(self, used_by_any: set[int]) -> None:
        """Parameters that this rank has not used, but another has, get a gradient, too."""
        for slot in self.slots:
            if slot.parameter.grad is None and slot.number in used_by_any:
                slot.parameter.grad = slot.view

    # --- what the first backward pass teaches --------------------------------------------------------------

    def _count(self) -> None:
        """In a static graph: this many calls of each hook from now on."""
        if self._counting:
            self._counting = False
            for slot in self.slots:
                slot.expected = slot.came

    def _learn_order(self, arrivals: list[int]) -> None:
        """Makes the buckets anew, in the order in which one rank's gradients came."""
        came = list(dict.fromkeys(arrivals))
        never = set(range(len(self.slots))).difference(came)
        order = np.array([*came, *sorted(never, reverse=True)])
        self.comm.broadcast(order, self.root)
        self._arrivals = None
        self._make_buckets(order.tolist())
        for slot in self.slots:
            if slot.parameter.grad is not None:
                slot.take()
