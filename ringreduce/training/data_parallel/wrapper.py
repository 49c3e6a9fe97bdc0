"""DataParallel: a module whose gradients are averaged over all ranks while the backward pass computes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce._engine import values
from ringreduce.annotations import Wire
from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.errors import Error
from ringreduce.training.data_parallel.hooks import CommHook, GradBucket
from ringreduce.training.data_parallel.shards import Shards
from ringreduce.training.foundation.agreement import (
    check_module,
    check_parameters,
    check_positive,
    check_same,
    check_whole,
    describe,
)
from ringreduce.training.foundation.assignment import Cut
from ringreduce.training.foundation.broadcast import Broadcast
from ringreduce.training.foundation.bucket import Slot
from ringreduce.training.foundation.exchange import WIRES, AllReduce, Exchange
from ringreduce.training.foundation.join import BUFFERS, ENDED, Join
from ringreduce.training.foundation.reducer import Keep, Reducer
from ringreduce.training.foundation.rows import sparse_names
from ringreduce.training.foundation.timings import StepTimings
from ringreduce.training.foundation.usage import FindUnused, StaticGraph, Usage

__all__ = ["DataParallel"]

MB = 1 << 20


class DataParallel(torch.nn.Module):
    """Trains a module on all ranks of a group, each with its own part of the data.

    All ranks begin with rank 0's parameters and buffers. Each backward pass averages the gradients over the ranks,
    bucket by bucket, while it computes the remaining ones. When ``backward()`` returns, all ranks have the same
    gradients. See Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.

    Gradients of embeddings with ``sparse=True`` are gathered as rows, outside the buckets. They stay sparse.

    The class corresponds to torch's DistributedDataParallel, not to torch.nn.DataParallel, which divides each batch
    among threads of one process.

    After an exception in a backward pass, training can continue with the next forward pass, if all ranks continue.

    Args:
        module: the same model on every rank. ``model.module`` returns it; its state_dict has no prefix.
        comm: the group. None takes :func:`ringreduce.world`. During backward passes, other calls on it must come in the
            same order on all ranks. ``comm.split(0)`` makes a separate group.
        bucket_mb: the MiB of gradients that are exchanged together. Towards the end of the backward pass buckets get
            smaller: each holds half of the remaining gradients.
        first_bucket_mb: the same for the first bucket of each dtype and device.
        find_unused_parameters: allows backward passes that do not compute a gradient for every parameter. This costs a
            walk through the graph after each forward pass. Parameters that no rank has used keep their gradient, or
            None.
        static_graph: promises that every step uses the same parameters the same number of times. The first step finds
            out which, and sends its buckets at the end. No walks are needed, and re-entrant checkpointing works.
        broadcast_buffers: sends rank 0's buffers to all ranks before each synchronised forward pass in training mode.
        wire: the format in which gradients travel, see :class:`ringreduce.Communicator`. Gradients of dtypes that the
            format does not support travel unchanged. Gradients are added in float32.
        gradient_as_bucket_view: makes ``parameter.grad`` a view of the bucket, so that nothing is copied back. Every
            step reuses this memory, so the next step overwrites a gradient that the program keeps. If False, each
            step's gradients are separate tensors, as is the default in torch's DistributedDataParallel. Sparse
            gradients always are.
        logical_shards: the number of shards that the global batch is divided into, a multiple of the number of ranks.
            Each rank makes a forward and a backward pass for each of its shards, all but the last within
            :meth:`no_sync`; rank 0 has the first shards, and so on. ``.grad`` is then the average over all shards, with
            the same bits for any number of ranks; earlier values of ``.grad`` are dropped. torch's sums depend on its
            number of threads, so it is set to 1 in this process (``torch.set_num_threads``).

    Raises:
        ValueError: an argument is invalid, or no parameter needs a gradient.
        Error: the ranks' models or arguments differ. The message names the first difference.
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
        wire: Wire | None = None,
        gradient_as_bucket_view: bool = True,
        logical_shards: int | None = None,
    ) -> None:
        super().__init__()
        check_module(module, "module")
        self.comm = chosen(comm)
        options: dict[str, Any] = {
            "bucket_mb": bucket_mb,
            "first_bucket_mb": first_bucket_mb,
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "broadcast_buffers": broadcast_buffers,
            "wire": wire,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "logical_shards": logical_shards,
        }
        check_same(self.comm, describe(module, options), "DataParallel: the ranks' models")
        _check(options, self.comm.size)
        named = check_parameters(module)
        self.module = module
        self._broadcast_buffers = broadcast_buffers
        self._synchronise = True
        self._buffer_places = [(m, name) for m in module.modules() for name in m._buffers]
        self._late = LateParameters(module)
        self._broadcast_of_buffers = Broadcast(self.comm)
        self._broadcast_state(0)
        self._options = options
        self._make_reducer(named)

    def regroup(self, comm: Communicator) -> None:
        """Continues with the ranks of another group. Every rank of it must call this, outside backward passes.

        Nothing is sent: the ranks' models must be the same already. Gradients of an unfinished backward pass are lost.
        The state of a communication hook gets the new group by its own ``regroup(comm)``, if it has one.

        Raises:
            ValueError: the number of logical shards is not a multiple of the number of ranks.
        """
        _check(self._options, comm.size)
        exchange = self._reducer.exchange
        self._unhook()
        self.comm = comm
        self._broadcast_of_buffers = Broadcast(comm)
        self._make_reducer(check_parameters(self.module))
        if isinstance(exchange, CommHook):
            self._reducer.exchange = exchange.regrouped(comm)

    def _make_reducer(self, named: list[tuple[str, Any]]) -> None:
        comm, options, shards = self.comm, self._options, self._options["logical_shards"]
        sparse = sparse_names(self.module)
        slots = [Slot(number, repr(name), one, name in sparse) for number, (name, one) in enumerate(named)]
        exchange: Exchange = AllReduce(comm, options["wire"])
        if shards is not None:
            if sparse:
                raise ValueError(
                    f"logical_shards cannot be combined with sparse=True, which {min(sparse)} has"
                )
            torch.set_num_threads(1)
            exchange = Shards(comm, shards)
        usage = Usage()
        if options["static_graph"]:
            usage = StaticGraph(slots)
        elif options["find_unused_parameters"]:
            usage = FindUnused()
        keep = Keep.VIEW if options["gradient_as_bucket_view"] else Keep.COPY
        cut = Cut(slots, options["first_bucket_mb"] * MB, options["bucket_mb"] * MB)
        reducer = Reducer(comm, "DataParallel", exchange, usage, keep, cut)
        reducer.follow(slots, cut.first())
        self._reducer = reducer
        self._unhook = weakref.finalize(self, reducer.unhook)
        self._unhook.atexit = False

    def _buffers_now(self) -> list[Any]:
        """Returns the data of the buffers: they may have been replaced, and autograd must not notice writes to them."""
        found = (module._buffers.get(name) for module, name in self._buffer_places)
        return [buffer.data for buffer in found if buffer is not None]

    def _broadcast_state(self, root: int) -> None:
        parameters = [parameter.data for parameter in self.module.parameters()]
        Broadcast(self.comm)([*parameters, *self._buffers_now()], root)

    @property
    def timings(self) -> StepTimings:
        """The times at which the gradients of the last synchronised backward pass were exchanged."""
        return self._reducer.timings

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Calls the module."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **named_inputs)
        self._late.check()
        self._reducer.begin_forward(self._synchronise)
        if self._synchronise and self._broadcast_buffers and self.training and self._buffer_places:
            join = self._reducer.join
            if join is not None:
                join.announce(BUFFERS)
            self._sync_buffers(0 if join is None else join.root)
        outputs = self.module(*inputs, **named_inputs)
        self._reducer.end_forward(outputs)
        return outputs

    def sync_buffers(self) -> None:
        """Sends rank 0's buffers to all ranks, for example before an evaluation. Every rank must call it."""
        self._sync_buffers(0)

    def _sync_buffers(self, root: int) -> None:
        self._broadcast_of_buffers(self._buffers_now(), root)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward passes add up gradients on this rank only, and send nothing.

        The forward passes must be within it, too.
        """
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    @contextmanager
    def join(self, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """Returns a context for the training loop, in which ranks may have different numbers of batches.

        A rank that has no data left contributes zeros to the others' steps, until no rank has data. Then all ranks get
        the model of one of the last ranks, but not the state of its optimizer. Every rank must enter the context. In
        it, a backward pass must follow each synchronised forward pass with gradients enabled.

        Args:
            divide_by_initial_world_size: divides the sum of the gradients by the number of all ranks. If False, it is
                divided by the number of ranks that still have data.

        Raises:
            ValueError: logical_shards is set; or divide_by_initial_world_size is False and a communication hook
                averages the gradients.
        """
        if isinstance(self._reducer.exchange, Shards):
            raise ValueError("join() cannot be combined with logical_shards")
        if isinstance(self._reducer.exchange, CommHook) and not divide_by_initial_world_size:
            raise ValueError(
                "a communication hook averages over all ranks: divide_by_initial_world_size must be True"
            )
        reducer = self._reducer
        reducer.join = join = Join(self.comm, reducer.exchange, divide_by_initial_world_size)
        try:
            yield
            reducer.settle(quiet=True)
            while (what := join.announce(ENDED)) != ENDED:
                if what == BUFFERS:
                    self._sync_buffers(join.root)
                else:
                    reducer.shadow()
            self._broadcast_state(join.root)
        finally:
            reducer.join, reducer.exchange.over = None, self.comm.size

    def register_comm_hook(self, state: Any, hook: Callable[[Any, GradBucket], Any]) -> None:
        """Registers a function that averages the gradients of a bucket, instead of an all-reduce.

        When a bucket is complete, ``hook(state, bucket)`` is called, in the same order on all ranks. It returns a
        ``torch.futures.Future`` of the averaged flat gradient, or of a list that begins with it.

        Args:
            state: an object that is passed to every call.
            hook: a function of state and a :class:`ringreduce.training.data_parallel.GradBucket`.

        Raises:
            ValueError: logical_shards is set, which averages in its own way.
        """
        if isinstance(self._reducer.exchange, Shards):
            raise ValueError("a communication hook cannot be combined with logical_shards")
        self._reducer.exchange = CommHook(self.comm, state, hook)

    def __getstate__(self) -> Any:
        raise TypeError(
            "a DataParallel cannot be copied or pickled; copy or save its .module, or that module's state_dict()"
        )


def _check(options: dict[str, Any], ranks: int) -> None:
    """Raises ValueError if an option is invalid or cannot be combined with another."""
    for name in ("bucket_mb", "first_bucket_mb"):
        check_positive(options[name], name)
    for name in ("find_unused_parameters", "static_graph", "broadcast_buffers", "gradient_as_bucket_view"):
        values.flag(options[name], name)
    if not isinstance(options["wire"], str | None) or options["wire"] not in WIRES:
        raise ValueError(f"wire must be one of {WIRES}, not {options['wire']!r}")
    shards = options["logical_shards"]
    if shards is None:
        return
    check_whole(shards, "logical_shards", 1)
    if shards % ranks:
        raise ValueError(f"logical_shards must be a multiple of the number of ranks, {ranks}, not {shards}")
    if options["wire"] is not None or options["static_graph"]:
        raise ValueError("logical_shards cannot be combined with wire or static_graph")


class LateParameters:
    """Detects parameters that need gradients only since the model was wrapped: nobody would average them.

    Before each step it checks what is cheap to check: whether frozen parameters are still frozen, and how many
    parameters and modules there are.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known = set(module.parameters())
        self._frozen = [parameter for parameter in self._known if not parameter.requires_grad]
        modules = list(module.modules())
        self._places = [m._parameters for m in modules] + [m._modules for m in modules]
        self._count = sum(map(len, self._places))

    def check(self) -> None:
        """Raises Error if there is such a parameter."""
        if sum(map(len, self._places)) == self._count and not any(p.requires_grad for p in self._frozen):
            return
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and (parameter not in self._known or parameter in set(self._frozen)):
                raise Error(
                    f"parameter '{name}' needs a gradient, but did not when the model was wrapped, so its gradients "
                    "would not be averaged. Discard this wrapper and wrap the model again"
                )
