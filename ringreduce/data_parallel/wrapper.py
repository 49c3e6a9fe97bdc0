"""DataParallel: a module whose gradients are averaged over all ranks while they are computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ringreduce import on_world
from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import check_parameters, check_same, describe
from ringreduce.data_parallel.broadcast import Broadcast
from ringreduce.data_parallel.exchange import AllReduce
from ringreduce.data_parallel.hooks import CommHook, GradBucket
from ringreduce.data_parallel.join import BACKWARD, BUFFERS, Join
from ringreduce.data_parallel.options import Options
from ringreduce.data_parallel.reducer import Reducer
from ringreduce.data_parallel.shards import ShardReducer
from ringreduce.data_parallel.timings import StepTimings

__all__ = ["DataParallel"]


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
        bucket_mb: so many MiB of gradients are exchanged together; fewer towards the end of the backward pass, where a
            bucket holds half of what is still to come.
        first_bucket_mb: the same of the first bucket of each dtype and device.
        find_unused_parameters: a backward pass need not bring a gradient for every parameter. Costs a walk through the
            graph after each forward pass. Parameters that no rank has used keep the gradient that they had, or None.
        static_graph: every step uses the same parameters the same number of times. It is found out in the first step,
            which sends its buckets at the end; no walk is needed then, and re-entrant checkpointing works.
        broadcast_buffers: rank 0's buffers go to all ranks before each synchronised forward pass in training mode.
        wire: what gradients travel as, see :class:`ringreduce.Communicator`, of dtypes for which there is such a form;
            others travel as they are. They are added in float32.
        logical_shards: the global batch is cut into so many shards, a multiple of the number of ranks. Each rank makes
            a forward and a backward pass for each of its shards, rank 0 for the first ones and so on, all but the last
            within :meth:`no_sync`. ``.grad`` is then the average over all shards (what was in it before is dropped),
            the same bits whatever the number of ranks.

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
        options = Options(
            bucket_mb,
            first_bucket_mb,
            find_unused_parameters,
            static_graph,
            broadcast_buffers,
            wire,
            logical_shards,
        )
        self.comm = on_world.world() if comm is None else comm
        check_same(self.comm, describe(module, vars(options)))
        options.check(self.comm.size)
        named = check_parameters(module)
        self.module = module
        self._options = options
        self._synchronise = True
        self._join: Join | None = None
        self._buffer_places = [(m, name) for m in module.modules() for name in m._buffers]
        self._broadcast_of_buffers = Broadcast(self.comm)
        self._broadcast_state(0)
        self._reducer = self._make_reducer(named)
        weakref.finalize(self, _remove, self._reducer.hooks).atexit = False

    def _make_reducer(self, named: list[tuple[str, Any]]) -> Reducer:
        options = self._options
        unused = options.find_unused_parameters and not options.static_graph
        if options.logical_shards is not None:
            return ShardReducer(self.comm, named, *options.limits, unused, options.logical_shards)
        exchange = AllReduce(self.comm, options.wire)
        return Reducer(self.comm, named, *options.limits, exchange, unused, options.static_graph)

    def _buffers_now(self) -> list[Any]:
        """The buffers, which may have been replaced; as data, of which no graph notices that it is written to."""
        found = (module._buffers.get(name) for module, name in self._buffer_places)
        return [buffer.data for buffer in found if buffer is not None]

    def _broadcast_state(self, root: int) -> None:
        parameters = [parameter.data for parameter in self.module.parameters()]
        Broadcast(self.comm)([*parameters, *self._buffers_now()], root)

    @property
    def timings(self) -> StepTimings:
        """When the gradients of the last synchronised backward pass were exchanged."""
        return self._reducer.timings

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Calls the module."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **named_inputs)
        self._reducer.begin_forward(self._synchronise)
        if self._synchronise and self._options.broadcast_buffers and self.training and self._buffer_places:
            if self._join is None:
                self.sync_buffers()
            else:
                self._join.announce(BUFFERS)
                self._sync_buffers(self._join.root)
        outputs = self.module(*inputs, **named_inputs)
        self._reducer.end_forward(outputs)
        return outputs

    def sync_buffers(self) -> None:
        """All ranks get rank 0's buffers. Every rank must call it; before an evaluation on all ranks, say."""
        self._sync_buffers(0)

    def _sync_buffers(self, root: int) -> None:
        self._broadcast_of_buffers(self._buffers_now(), root)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes within it are those of backward passes whose gradients are only added up on this rank."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    @contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """Around the loop over a rank's data, where ranks may have unequal numbers of batches.

        A rank that comes to its end takes part in the others' steps with zeros until none has data left; then all get
        the model of a rank that was among the last (not its optimizer's state). Every rank must enter it, and each of
        its synchronised forward passes with gradients enabled must be followed by a backward pass.

        Args:
            divide_by_initial_world_size: gradients are sums over ranks with data, divided by the number of all ranks.
                False: divided by the number of those with data.

        Raises:
            ValueError: logical_shards is given, or the average is a communication hook's and over fewer ranks.
        """
        if self._options.logical_shards is not None:
            raise ValueError("join() does not go with logical_shards")
        if isinstance(self._reducer.exchange, CommHook) and not divide_by_initial_world_size:
            raise ValueError(
                "a communication hook averages over all ranks: divide_by_initial_world_size must be True"
            )
        self._join = join = Join(self, divide_by_initial_world_size)
        self._reducer.before_backward = partial(join.announce, BACKWARD)
        try:
            yield
            join.shadow()
        finally:
            self._join = self._reducer.before_backward = None
            self._reducer.root, self._reducer.exchange.over = 0, self.comm.size

    def register_comm_hook(self, state: Any, hook: Callable[[Any, GradBucket], Any]) -> None:
        """Has a function average the buckets' gradients instead of an all-reduce.

        It is called as ``hook(state, bucket)`` when a bucket's gradients are there, in the same order on all ranks,
        and returns a ``torch.futures.Future`` of the averaged flat gradient (or of a list that begins with it).

        Args:
            state: whatever the hook wants to have kept between calls.
            hook: takes state and a :class:`ringreduce.data_parallel.GradBucket`.

        Raises:
            ValueError: logical_shards is given, which has its own way to average.
        """
        if self._options.logical_shards is not None:
            raise ValueError("a communication hook does not go with logical_shards")
        self._reducer.exchange = CommHook(self.comm, state, hook)

    def __getstate__(self) -> Any:
        raise TypeError(
            "a DataParallel cannot be copied or pickled; copy or save its .module, or the state_dict of it"
        )


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
