"""Stage 2: gradients are averaged bucket by bucket during the backward pass, and each rank keeps its part."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import torch

from ringreduce.data_parallel.memory import allocate
from ringreduce.errors import Error
from ringreduce.sharded_optimizer.bucket import Bucket, Slot
from ringreduce.sharded_optimizer.waits import Waits
from ringreduce.work import Work

__all__ = ["GradientShards"]

IN_FLIGHT = 2  # buckets' worth of whole gradients: one is filled while another is exchanged


class Exchange(NamedTuple):
    """A bucket's reduce-scatter under way."""

    number: int
    bucket: Bucket
    gradients: Any  # of the whole bucket, in borrowed memory
    adds: bool  # this rank's part of the result is still to be added to the bucket's gradient
    submitted: float
    work: Work


class GradientShards:
    """Takes each parameter's gradient as it comes, and leaves this rank's part of the averages in the buckets.

    Whole gradients are held in few buckets' worth of memory, which goes from bucket to bucket. Every synchronised
    backward pass sends every bucket once, in order; what a rank has no gradient of counts as zeros. So ranks stay in
    step whatever parts of the model each has used.
    """

    averaged_by = "a ShardedOptimizer of stage 2"

    def __init__(self, waits: Waits) -> None:
        self.synchronise = True
        self._hooks: list[Any] = []
        self._buckets: list[Bucket] = []
        self._free: list[Any] = []
        self._under_way: deque[Exchange] = deque()
        self._filling: dict[Bucket, Any] = {}  # the whole gradients of buckets that are not sent yet
        self._left: dict[Bucket, int] = {}  # how many gradients each lacks, in this backward pass
        self._seen: set[Slot] = set()  # whose gradients have come in this backward pass
        self._next = 0  # number of the bucket that is sent next
        self._running = False
        self._waits = waits

    def follow(self, buckets: list[Bucket]) -> None:
        """Watches these buckets' parameters, too."""
        self._buckets += buckets
        for bucket in buckets:
            for slot in bucket.slots:
                hook = slot.parameter.register_post_accumulate_grad_hook(partial(self._came, slot))
                self._hooks.append(hook)

    def unhook(self) -> None:
        """Leaves the parameters alone again. The hooks keep this object alive, out of the garbage collector's sight."""
        for hook in self._hooks:
            hook.remove()

    # --- the backward pass ---------------------------------------------------------------------------------

    def _came(self, slot: Slot, parameter: Any) -> None:
        if not self.synchronise:
            return  # added up in parameter.grad, as ever
        if not self._running:
            self._begin()
        bucket = slot.bucket
        if self._left[bucket] == 0:
            raise Error(
                f"ShardedOptimizer: parameter {slot.number} got one more gradient in this backward pass after its "
                "bucket was sent. After a backward pass that has failed, call zero_grad() first"
            )
        self._take(slot, first=slot not in self._seen)
        if slot not in self._seen:
            self._seen.add(slot)
            self._left[bucket] -= 1
        self._send()

    def _begin(self) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self.end)
        self._running = True
        self._next = 0
        self._seen.clear()
        self._left = {bucket: len(bucket.slots) for bucket in self._buckets}

    def _take(self, slot: Slot, first: bool) -> None:
        """Moves a gradient to where it is exchanged."""
        gradient = slot.parameter.grad
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of parameter {slot.number} is sparse: ShardedOptimizer takes dense ones"
            )
        place = slot.shaped(self._whole(slot.bucket))
        with torch.no_grad():
            place.copy_(gradient) if first else place.add_(gradient)
        slot.parameter.grad = None
        slot.came = True

    def _whole(self, bucket: Bucket) -> Any:
        """Memory for the gradients of the whole bucket."""
        if bucket not in self._filling:
            if not self._free and len(self._under_way) >= IN_FLIGHT:
                self._settle_oldest()
            self._filling[bucket] = self._borrow(bucket)
        return self._filling[bucket]

    def _borrow(self, bucket: Bucket) -> Any:
        like = bucket.memory
        for number, memory in enumerate(self._free):
            if (memory.dtype, memory.device) == (like.dtype, like.device) and len(memory) >= len(like):
                return self._free.pop(number)
        kin = [
            len(b.memory)
            for b in self._buckets
            if (b.memory.dtype, b.memory.device) == (like.dtype, like.device)
        ]
        return allocate(max(kin), like.dtype, like.device)

    def _send(self) -> None:
        """All buckets that are complete and whose turn it is: the order is the same on all ranks."""
        while self._next < len(self._buckets) and self._left[self._buckets[self._next]] == 0:
            bucket = self._buckets[self._next]
            whole = self._whole(bucket)
            del self._filling[bucket]
            gradients = whole[: len(bucket.memory)]
            adds = bucket.has_gradient
            if bucket.gradient is None:
                bucket.gradient = allocate(bucket.own[1] - bucket.own[0], whole.dtype, whole.device)
            out = bucket.part(gradients) if adds else bucket.gradient
            bucket.has_gradient = True
            work = bucket.reduce_scatter(gradients, out)
            self._under_way.append(Exchange(self._next, bucket, whole, adds, time.monotonic(), work))
            self._next += 1

    def end(self) -> None:
        """The backward pass is over (or has failed): sends what it has not completed."""
        if not self._running:
            return
        for bucket in self._buckets[self._next :]:
            for slot in bucket.slots:
                if slot not in self._seen:
                    self._do_without(slot)
            self._left[bucket] = 0
            self._send()
        self._running = False

    def _do_without(self, slot: Slot) -> None:
        """A parameter that this backward pass did not reach: what earlier ones have left counts, or zeros."""
        if slot.parameter.grad is not None:
            self._take(slot, first=True)
        else:
            slot.shaped(self._whole(slot.bucket)).zero_()

    # --- after it ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Waits until the averages of all backward passes so far are in the buckets."""
        self.end()
        while self._under_way:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        exchange = self._under_way.popleft()
        self._waits.wait(exchange.number, exchange.bucket, exchange.submitted, exchange.work)
        if exchange.adds:
            exchange.bucket.gradient += exchange.bucket.part(exchange.gradients)
        self._free.append(exchange.gradients)

    def clear(self) -> None:
        """Forgets the averages."""
        self.settle()
        for bucket in self._buckets:
            bucket.has_gradient = False
            for slot in bucket.slots:
                slot.came = False
