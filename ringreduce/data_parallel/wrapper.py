"""DataParallel: a module whose gradients are averaged over all ranks while they are computed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce import on_world
from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import check_same, describe
from ringreduce.data_parallel.broadcast import broadcast_tensors
from ringreduce.data_parallel.exchange import AllReduce
from ringreduce.data_parallel.outputs import parameters_reached, tensors_in
from ringreduce.data_parallel.reducer import Reducer
from ringreduce.data_parallel.timings import StepTimings

__all__ = ["DataParallel"]

MB = 1 << 20


class DataParallel(torch.nn.Module):
    """Trains a module on all ranks of a group, each with its own part of the data.

    All ranks begin with rank 0's parameters and buffers. In each backward pass gradients are averaged over the ranks,
    bucket by bucket, while the rest of it goes on; when ``backward()`` returns, all ranks have the same gradients.
    See Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.

    After an exception in a backward pass, training may go on with the next forward pass, if it does on all ranks.

    Args:
        module: the same model on every rank. ``model.module`` gives it back; its state_dict has no prefix.
        comm: the group. None: :func:`ringreduce.world`. Nothing else may use it during backward passes but in the same
            order on all ranks; ``comm.split(0)`` gives a group of one's own.
        bucket_mb: gradients, in MiB, that are exchanged together.
        first_bucket_mb: the same of the first bucket of each dtype and device.
        find_unused_parameters: a backward pass need not bring a gradient for every parameter. Costs a walk through the
            graph after each forward pass. Parameters that no rank has used keep the gradient that they had, or None.
        static_graph: every step uses the same parameters the same number of times. It is found out in the first step,
            which sends its buckets at the end; no walk is needed then, and re-entrant checkpointing works.
        broadcast_buffers: rank 0's buffers go to all ranks before each synchronised forward pass in training mode.
        wire: what gradients travel as, see :class:`ringreduce.Communicator`, of dtypes for which there is such a form.
            They are added in float32.

    Raises:
        ValueError: an argument is bad, or no parameter needs a gradient.
        Error: the ranks' models or arguments differ; the message says what differs first.
    """

    def __init__(
        self,
        module: Any,
        comm: Communicator | None = None,
        *,
        bucket_mb: float = 25.0,
        first_bucket_mb: float = 1.0,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        broadcast_buffers: bool = True,
        wire: str | None = None,
        logical_shards: int | None = None,
    ) -> None:
        super().__init__()
        if bucket_mb <= 0 or first_bucket_mb <= 0:
            raise ValueError("bucket_mb and first_bucket_mb must be positive")
        self.comm = on_world.world() if comm is None else comm
        settings = {
            "bucket_mb": bucket_mb,
            "first_bucket_mb": first_bucket_mb,
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "broadcast_buffers": broadcast_buffers,
            "wire": wire,
            "logical_shards": logical_shards,
        }
        check_same(self.comm, describe(module, settings))
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("module has no parameter that needs a gradient")
        self.module = module
        self._synchronise = True
        self._find_unused = find_unused_parameters and not static_graph
        self._broadcast_buffers = broadcast_buffers
        self._buffer_places = [(m, name) for m in module.modules() for name in m._buffers]
        broadcast_tensors(self.comm, [*(p.data for p in module.parameters()), *self._buffers_now()], 0)
        self._reducer = Reducer(
            self.comm,
            named,
            first_bucket_mb * MB,
            bucket_mb * MB,
            AllReduce(self.comm, wire),
            self._find_unused,
            static_graph,
        )
        weakref.finalize(self, _remove, self._reducer.hooks)

    def _buffers_now(self) -> list[Any]:
        """The buffers, which may have been replaced."""
        return [m._buffers[name] for m, name in self._buffer_places if m._buffers.get(name) is not None]

    @property
    def timings(self) -> StepTimings:
        """When the gradients of the last synchronised backward pass were exchanged."""
        return self._reducer.timings

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Calls the module."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **named_inputs)
        self._reducer.settle()
        self._reducer.synchronise = self._synchronise
        if self._synchronise and self._broadcast_buffers and self.training:
            self.sync_buffers()
        outputs = self.module(*inputs, **named_inputs)
        skipped = None
        if self._find_unused and self._synchronise:
            reached = parameters_reached(outputs)
            skipped = {slot.number for slot in self._reducer.slots if id(slot.parameter) not in reached}
        self._reducer.outputs_follow(skipped)
        for tensor in tensors_in(outputs):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._reducer.queue_end)
        return outputs

    def sync_buffers(self) -> None:
        """All ranks get rank 0's buffers. Every rank must call it; before an evaluation on all ranks, say."""
        broadcast_tensors(self.comm, self._buffers_now(), 0)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes within it are those of backward passes whose gradients are only added up on this rank."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def __getstate__(self) -> Any:
        raise TypeError(
            "a DataParallel cannot be copied or pickled; copy or save its .module, or the state_dict of it"
        )


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
