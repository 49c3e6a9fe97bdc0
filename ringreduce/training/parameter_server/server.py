"""ParameterServer: the interface of training programs to workers and servers."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ringreduce._engine import values as checked
from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.errors import ClosedError, Error
from ringreduce.living import Living
from ringreduce.training.foundation.agreement import check_module, check_same, describe
from ringreduce.training.foundation.broadcast import Broadcast
from ringreduce.training.foundation.part import copy_options, options
from ringreduce.training.foundation.rows import sparse_names
from ringreduce.training.parameter_server.client import Client
from ringreduce.training.parameter_server.memory import move_in
from ringreduce.training.parameter_server.saving import states_of, whole_state
from ringreduce.training.parameter_server.server_arguments import check_arguments, group_numbers, groups_in
from ringreduce.training.parameter_server.server_layout import ServerLayout, check_optimizer, named_parameters
from ringreduce.training.parameter_server.service import Service
from ringreduce.training.parameter_server.shard import Shard
from ringreduce.training.parameter_server.stepper import ShardSettings, number_names
from ringreduce.training.parameter_server.wire import Format, connect
from ringreduce.training.parameter_server.worker import Worker

__all__ = ["ParameterServer"]

_live: Living[ParameterServer] = Living()


class ParameterServer(torch.optim.Optimizer):
    """Trains asynchronously: servers keep the parameters, and workers push gradients and pull parameters.

    A worker calls :meth:`step` after each backward pass. It sends the gradients to the servers, which run the
    optimizer, and receives new parameters. With ``staleness`` 0 this is synchronous data parallelism: the servers
    average the gradients of all workers and step once. Otherwise each gradient is a step of its own, as soon as it
    comes, and no worker waits for a slower one until it is ``staleness`` steps ahead.

    ::

        server = ringreduce.ParameterServer(comm, model, torch.optim.SGD, lr=0.1, staleness=2)
        for x, y in batches:
            server.zero_grad()
            loss(model(x), y).backward()
            server.step()
        server.close()

    Every rank must create it, with the same model and arguments. All begin with rank 0's parameters and buffers. Later,
    each worker has its own buffers. After that ``comm`` is not used any more, and the loss of a rank breaks only the
    connections of this rank. If a worker is lost, the others continue without it. If a server is lost, the next one
    continues with its copy.

    The parameters become views of memory that peers can read, so convert the model first. It must stay on the CPU.
    Gradients of embeddings with ``sparse=True`` travel as rows, and so do their parameters. ``param_groups`` work as in
    any optimizer, and schedulers may change their numbers, such as the learning rate: they travel with the gradients.

    Args:
        comm: the group, with at least two ranks. None takes :func:`ringreduce.world`.
        model: the module to train.
        optimizer: a class from torch.optim, or compatible with it. The servers run it.
        groups: parameter groups as torch.optim takes them. None: one with all parameters that need gradients.
        staleness: how many clocks a worker may be ahead of the slowest. A clock is as many batches as there are
            workers. None: there is no bound.
        servers: the number of ranks, the last ones, that only serve and call :meth:`serve`. None: all ranks are
            workers, and each also serves its shard in threads of its own.
        copies: whether each shard has a copy on the next server. None: if there are at least two servers.
        overlap: pushes and pulls while the next gradient is computed. The parameters then lack the worker's own last
            gradient. Needs a staleness of at least 1, or None.
        delay_compensation: the strength of DC-ASGD's correction of delayed gradients, lambda in the paper; 0.04 is
            usual, and 2 with compensation_decay. Needs a staleness of at least 1, or None.
        compensation_decay: the decay of the running mean of squared gradients that divides the strength in the
            adaptive variant of DC-ASGD; 0.95 is usual. None: the strength is constant.
        defaults: arguments of the optimizer.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument or parameter is invalid, or the optimizer does not take the model's gradients.
        Error: the ranks' models or arguments differ. The message names the first difference and the ranks.
    """

    def __init__(
        self,
        comm: Communicator | None,
        model: nn.Module,
        optimizer: Any,
        groups: Iterable[dict[str, Any]] | None = None,
        *,
        staleness: int | None = 0,
        servers: int | None = None,
        copies: bool | None = None,
        overlap: bool = False,
        delay_compensation: float | None = None,
        compensation_decay: float | None = None,
        **defaults: Any,
    ) -> None:
        self.comm = chosen(comm)
        check_module(model, "model")
        ranks = list(range(self.comm.size))
        check_arguments(
            self.comm.size, optimizer, staleness, servers, copies, overlap, delay_compensation, compensation_decay
        )  # fmt: skip
        self.servers = ranks if servers is None else ranks[-servers:]
        self.workers = ranks if servers is None else ranks[:-servers]
        copies = len(self.servers) > 1 if copies is None else copies
        groups = None if groups is None else groups_in(groups)
        settings = {
            "groups": groups and [options(group) for group in groups],
            "optimizer": optimizer.__name__, **defaults, "staleness": staleness, "servers": servers, "copies": copies,
            "overlap": overlap, "delay_compensation": delay_compensation, "compensation_decay": compensation_decay,
        }  # fmt: skip
        check_same(self.comm, describe(model, settings), "ParameterServer: the ranks' models or arguments")
        named = named_parameters(model)
        sparse = sparse_names(model)
        only_its_rows = check_optimizer(optimizer, defaults, named, sparse)
        self._layout = ServerLayout(named, sparse, optimizer, len(self.servers))
        super().__init__(groups or [p for _, p in named], {})
        made = optimizer([{**group} for group in self.param_groups], **defaults)
        copy_options(made.param_groups, self.param_groups)
        self.defaults = made.defaults
        self._settings = ShardSettings(
            len(self.workers), staleness, partial(optimizer, **defaults), [options(g) for g in self.param_groups],
            group_numbers(named, self.param_groups), only_its_rows, delay_compensation, compensation_decay,
        )  # fmt: skip
        self._prepare(model, copies, overlap)

    def _prepare(self, model: nn.Module, copies: bool, overlap: bool) -> None:
        comm, layout, timeout = self.comm, self._layout, self.comm.timeout
        rank, works, serves = comm.rank, comm.rank in self.workers, comm.rank in self.servers
        Broadcast(comm)([t.detach() for t in (*model.parameters(), *model.buffers())], 0)
        self._values = move_in(layout)
        numbers = [len(number_names(group)) for group in self._settings.groups]
        format = Format(len(self.workers), sum(numbers), layout)
        requests = connect(comm, self.workers, self.servers, format)
        copying = connect(comm, self.servers, self.servers, format) if copies else {}
        self._channels = [*requests.values(), *copying.values()]
        self._service: Service | None = None
        if serves:
            worker_of = {worker: number for number, worker in enumerate(self.workers)}
            make = partial(Shard, layout=layout, settings=self._settings, values=self._values)
            self._service = Service(rank, self.servers, requests, copying, worker_of, make, timeout)
        self._worker: Worker | None = None
        if works:
            number, workers = self.workers.index(rank), len(self.workers)
            to_servers = {peer: channel for peer, channel in requests.items() if peer in self.servers}
            self._client = Client(
                rank, number, workers, self.servers, to_servers, self._service, layout, copies, timeout
            )
            self._worker = Worker(self._client, layout, number, workers, self._values, overlap)
        self._closed = False
        _live.add(self)

    # --- work ----------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The clock of the batch that this worker computes, from 0: its number of steps, unless batches are shared."""
        return self._working().clock

    @property
    def lost(self) -> set[int]:
        """The ranks whose loss this rank has noticed."""
        lost = set() if self._worker is None else set(self._client.lost)
        return lost if self._service is None else lost | self._service.lost

    def _working(self) -> Worker:
        if self._closed:
            raise ClosedError("the ParameterServer is closed")
        if self._worker is None:
            raise Error(f"rank {self.comm.rank} is a dedicated server: it must call serve()")
        return self._worker

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Pushes this worker's gradients, and pulls the parameters of its next step.

        Waits while this worker is ``staleness`` clocks ahead of the slowest. It returns when all servers, and their
        copies, have the gradients. With overlap it returns at once, and the next step waits. Within the loop over
        :meth:`batches` it only pushes: the loop pulls.

        Args:
            closure: a function that computes the gradients. It is called once, at the start.

        Returns:
            The result of closure.

        Raises:
            Error: this rank does not work, or the optimizer failed on a server.
            PeerLost: a part of the parameters is lost with its server, and so is its copy.
            TypeError: a gradient is sparse, but its parameter is not the weight of an embedding with sparse=True.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        numbers = [
            float(group[name])
            for group, known in zip(self.param_groups, self._settings.groups, strict=True)
            for name in number_names(known)
        ]
        self._working().step(numbers)
        return loss

    def batches(self, count: int) -> Iterator[int]:
        """Returns an iterator over this worker's batches: numbers from 0 to count - 1.

        All workers take batches from one queue, each whenever it is free, so a slow one gets fewer. Call :meth:`step`
        once for each. If a worker is lost, another gets its batch. The loop ends when all batches of all workers are
        done; then the model has the parameters that follow from all of them. Every worker must call it, as often and
        with the same counts. It cannot be combined with steps outside of the loop, or with overlap.
        """
        checked.whole(count, "count", 1)
        return self._working().batches(count)

    def serve(self) -> None:
        """Serves until all workers have closed or were lost. Only dedicated servers call it."""
        if self._worker is not None:
            raise Error(
                f"rank {self.comm.rank} is a worker; only the ranks {self.servers} of servers=... serve"
            )
        self.close()

    def close(self) -> None:
        """Ends this rank's work. A rank that serves continues to do so until all workers have closed or were lost.

        The model keeps its parameters. Calling it again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._worker is not None:
                self._worker.leave()
            if self._service is not None:
                while not self._service.join(0.1):
                    pass  # a signal can interrupt it here
                self._service.end()
        except BaseException:
            self._leave()
            raise
        for channel in self._channels:
            channel.comm.close()

    def _leave(self) -> None:
        """Leaves all ranks at once. They count this one as lost."""
        self._closed = True
        for channel in self._channels:
            channel.comm._c.leave()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._leave()

    # --- saving --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state of the optimizer, as the optimizer itself would without servers.

        Any worker may call it. If others push at the same time, the parts of different servers may differ by their
        steps.
        """
        worker = self._working()
        worker.settle()
        return whole_state(self._layout, self._client.states(), self.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a whole state, from :meth:`state_dict` or the optimizer without servers.

        The servers also take the parameters of the model, so load these first. Every worker must call it with the same
        model and state, after the same number of steps, before it steps again.

        Raises:
            ValueError: the number or the lengths of its parameter groups differ.
        """
        worker = self._working()
        states = states_of(self._layout, state_dict, self.param_groups)
        saved = state_dict["param_groups"]
        copy_options(saved, self.param_groups)
        worker.load(states, [options(group) for group in saved])

    def __getstate__(self) -> Any:
        raise TypeError("a ParameterServer cannot be copied or pickled; save its state_dict()")


@atexit.register
def _leave_all() -> None:
    """A program that ends without close() must not leave others waiting, nor threads in the engine."""
    for server in _live:
        if not server._closed:
            server._leave()
