"""A worker's steps: which ticket it computes, and when it pushes and pulls, perhaps in the background."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ringreduce.errors import Error
from ringreduce.training.parameter_server.client import Client
from ringreduce.training.parameter_server.memory import FlatGradients
from ringreduce.training.parameter_server.server_layout import ServerLayout
from ringreduce.training.parameter_server.tickets import END

__all__ = ["Worker"]


class Worker:
    """Steps through the tickets of one worker.

    Args:
        number, workers: the worker's number, and the number of all.
        values: the flat memory of the parameters.
        overlap: whether to push and pull in a thread while the next gradient is computed.
    """

    def __init__(
        self,
        client: Client,
        layout: ServerLayout,
        number: int,
        workers: int,
        values: list[Any],
        overlap: bool,
    ) -> None:
        self._client, self._layout, self._number, self._workers = client, layout, number, workers
        self._values = values
        self._gradients = FlatGradients(layout)
        self._steps = 0  # of fixed tickets
        self._shared = False
        self._begin = 0  # the first of the shared tickets
        self._open = END  # the shared ticket that is being computed
        self._pushed = END  # the last ticket, until it is confirmed
        self._coming = [part.bucket.allocate() for part in layout.parts] if overlap else None
        self._thread = ThreadPoolExecutor(1, "parameter server, push and pull") if overlap else None
        self._exchange: Future[list[Any]] | None = None

    @property
    def clock(self) -> int:
        """The clock of the ticket that is being computed."""
        return self._client.grant.clock if self._shared else self._steps

    @torch.no_grad()
    def step(self, options: Sequence[float]) -> None:
        """Pushes the gradients of the parameters, and pulls parameters unless tickets are shared."""
        if self._shared and self._open == END:
            raise Error(
                "ParameterServer.step() must be called in the loop over batches(), once for each batch"
            )
        if self._thread is not None:
            self._finish_exchange()
            self._gradients.take(keep=True)
            self._exchange = self._thread.submit(self._push_and_pull, self._steps, 2, list(options))
            self._steps += 1
            return
        self._gradients.take()
        if self._shared:
            self._client.push(self._open, self._gradients, options)
            self._open, self._pushed = END, self._open
        else:
            self._put(self._push_and_pull(self._steps, 1, options))
            self._steps += 1

    def _ticket(self, step: int) -> int:
        return step * self._workers + self._number

    def _push_and_pull(self, step: int, ahead: int, options: Sequence[float]) -> list[Any]:
        """Pushes the gradients of a step, and pulls the parameters of one that comes later. Returns rows."""
        ticket = self._ticket(step)
        self._client.push(ticket, self._gradients, options)
        self._pushed = ticket
        self._client.ask(ticket, self._ticket(step + ahead))
        self._pushed = END
        return self._client.pull(self._coming or self._values)

    def _finish_exchange(self) -> None:
        """Takes the parameters that have arrived in the background."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            rows = exchange.result()
            assert self._coming is not None
            for own, new in zip(self._values, self._coming, strict=True):
                own.copy_(new)
            self._put(rows)

    def _put(self, rows: list[Any]) -> None:
        for place, values in rows:
            place[values[0]] = values[1]

    # --- shared tickets ------------------------------------------------------------------------------------

    def batches(self, count: int) -> Iterator[int]:
        """Yields the numbers of this worker's batches."""
        if self._thread is not None:
            raise Error(
                "ParameterServer.batches() cannot be combined with overlap: a batch is given to a free worker"
            )
        if self._steps:
            raise Error("ParameterServer.batches() must not follow a step() outside of it")
        self._shared = True
        begin = self._begin
        while (ticket := self._next(begin + count)) != END:
            self._open = ticket
            yield ticket - begin
            if self._open != END:
                raise Error(f"batch {ticket - begin}: the loop over batches() continued without a step()")
        self._begin = -(-(begin + count) // self._workers) * self._workers

    @torch.no_grad()
    def _next(self, until: int) -> int:
        grant = self._client.ask(self._pushed, until=until)
        self._pushed = END
        self._put(self._client.pull(self._values))
        return grant.ticket

    # --- saving, and the end -------------------------------------------------------------------------------

    @torch.no_grad()
    def settle(self) -> None:
        """Waits for the push and pull in the background."""
        self._finish_exchange()

    @torch.no_grad()
    def load(self, states: dict[int, Any], groups: list[dict[str, Any]]) -> None:
        """Gives the servers this worker's parameters and an optimizer's state."""
        self._finish_exchange()
        self._client.load(self._values, states, groups)

    def leave(self) -> None:
        """Says that this worker has ended, and takes the last parameters that come."""
        try:
            self.settle()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._client.leave(self._pushed)
