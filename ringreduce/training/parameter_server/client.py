"""A worker's requests to the servers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from ringreduce.errors import Error, PeerLost
from ringreduce.training.foundation.rows import Rows
from ringreduce.training.parameter_server.memory import FlatGradients
from ringreduce.training.parameter_server.server_layout import ServerLayout
from ringreduce.training.parameter_server.service import Service
from ringreduce.training.parameter_server.tickets import END, Grant
from ringreduce.training.parameter_server.wire import Channel, Message, MessageKind

__all__ = ["Client"]


class Client:
    """Sends a worker's requests to all shards, wherever they are.

    Args:
        worker, workers: the worker's number, and the number of all.
        channels: those of all servers but the one in this process, by rank.
        service: the server in this process, or None.
        copies: whether the next server takes over if one is lost.
    """

    def __init__(
        self,
        rank: int,
        worker: int,
        workers: int,
        servers: list[int],
        channels: dict[int, Channel],
        service: Service | None,
        layout: ServerLayout,
        copies: bool,
        timeout: float,
    ) -> None:
        self._rank, self._worker, self._servers, self._channels = rank, worker, servers, channels
        self._service, self._layout = service, layout
        self._copies, self._timeout = copies, timeout
        self._workers = workers
        self.lost: set[int] = set()
        self._versions = [0] * len(servers)
        self._asks = self._loads = 0
        self.grant = Grant(END, 0, [], 0)

    # --- what a worker asks for ----------------------------------------------------------------------------

    def ask(self, confirmed: int, wanted: int = END, until: int = END) -> Grant:
        """Asks for a ticket, and waits until it may begin. See Tickets.ask."""
        message = self._message(
            MessageKind.ASK, 0, ticket=wanted, confirmed=confirmed, until=until, number=self._asks
        )
        self._asks += 1
        (reply,) = self._call([message])
        self.grant = Grant(reply.ticket, reply.clock, list(reply.present), reply.floor)
        return self.grant

    def push(self, ticket: int, gradients: FlatGradients, options: Sequence[float]) -> None:
        """Sends the gradients of a ticket, and returns when all shards have them, and their copies too."""
        messages = []
        for shard in range(len(self._servers)):
            dense, rows = gradients.of(shard)
            message = self._message(MessageKind.PUSH, shard, ticket=ticket, floor=self.grant.floor)
            message.dense, message.rows, message.used, message.options = dense, rows, gradients.used, options
            messages.append(message)
        self._call(messages)

    def pull(self, values: list[Any]) -> list[tuple[Any, Rows]]:
        """Receives the parameters for the ticket that was granted last.

        Args:
            values: flat memory for the parts.

        Returns:
            The rows of tables that have changed: memory of a table, and the numbers of rows in it and their values.
        """
        grant = self.grant
        messages = [
            self._message(
                MessageKind.PULL,
                shard,
                ticket=grant.ticket,
                clock=grant.clock,
                present=grant.present,
                version=version,
            )
            for shard, version in enumerate(self._versions)
        ]
        found = []
        for reply in self._call(messages, values):
            self._versions[reply.shard] = reply.version
            for table, rows in zip(self._layout.tables, reply.rows, strict=True):
                found.append((table.of(reply.shard), rows))
        return found

    def states(self) -> list[list[Any]]:
        """Returns the state of each shard's optimizer. See Stepper.state."""
        messages = [self._message(MessageKind.STATE, shard) for shard in range(len(self._servers))]
        return [pickle.loads(reply.payload) for reply in self._call(messages)]

    def load(self, values: list[Any], states: dict[int, Any], groups: list[dict[str, Any]]) -> None:
        """Gives all shards the parameters of this worker, and the states of the optimizer by parameter."""
        self._loads += 1
        messages = []
        for shard in range(len(self._servers)):
            ranges = [part.of(flat, shard) for part, flat in zip(self._layout.parts, values, strict=True)]
            ranges += [table.of(shard) for table in self._layout.tables]
            own = [value.clone() for value in ranges]  # without it, pickle would save the whole memory
            payload = pickle.dumps((own, states, groups))
            messages.append(self._message(MessageKind.LOAD, shard, number=self._loads, payload=payload))
        self._call(messages)

    def leave(self, confirmed: int) -> None:
        """Says that this worker has ended."""
        try:
            self._call([self._message(MessageKind.LEAVE, 0, confirmed=confirmed)])
        finally:
            for server, channel in self._channels.items():
                if server not in self.lost:
                    try:
                        channel.send(Message(MessageKind.BYE, worker=self._worker), False)
                    except Error:
                        self.lost.add(server)
            if self._service is not None:
                self._service.leave(self._worker)

    def _message(self, kind: MessageKind, shard: int, **rest: Any) -> Message:
        return Message(kind, shard, self._worker, **rest)

    # --- how requests find their server --------------------------------------------------------------------

    def _call(self, messages: Sequence[Message], into: list[Any] | None = None) -> list[Message]:
        """Sends requests to different shards at the same time, and returns their answers.

        If a server is lost, its requests go to the next one. A server knows a request that it has had.
        """
        try:
            return self._exchange(messages, into)
        except Error:
            raise
        except BaseException:  # interrupted: answers that nobody reads would be taken for later ones
            for channel in self._channels.values():
                channel.comm._c.leave()
            raise

    def _exchange(self, messages: Sequence[Message], into: list[Any] | None) -> list[Message]:
        replies: list[Message] = []
        rest = list(messages)
        while rest:
            sent = [(message, *self._send(message)) for message in rest]
            rest = []
            # This process's own server comes last, while the others work.
            for message, server, works in sorted(sent, key=lambda each: each[1] == self._rank):
                reply = self._receive(message, server, works, into)
                if reply is None:
                    rest.append(message)
                else:
                    replies.append(self._checked(reply, message.shard))
        return replies

    def _send(self, message: Message) -> tuple[int, list[Any]]:
        server = self._server_of(message.shard)
        if server != self._rank:
            try:
                return server, self._channels[server].send(message, False)
            except Error:
                self.lost.add(server)
        return server, []

    def _receive(
        self, message: Message, server: int, works: list[Any], into: list[Any] | None
    ) -> Message | None:
        """Returns the answer to a request, or None if the server was lost."""
        ranges = [] if into is None else self._ranges(into, message.shard)
        if server == self._rank:
            assert self._service is not None
            if message.dense is not None:
                own = self._service.room(message)
                for copy, gradient in zip(own, message.dense, strict=True):
                    copy.copy_(gradient)
                message.dense = own
            return self._service.handle(message, ranges if message.kind is MessageKind.PULL else None)
        if server in self.lost:
            return None
        try:
            for work in works:
                work.wait()
            # A ticket may have to wait until one worker after another counts as lost.
            patience = self._timeout * (self._workers + 3 if message.kind is MessageKind.ASK else 3)
            return self._channels[server].receive(True, lambda _: ranges, patience)
        except Error:
            self.lost.add(server)
            return None

    def _ranges(self, memory: list[Any], shard: int) -> list[Any]:
        return [part.of(flat, shard) for part, flat in zip(self._layout.parts, memory, strict=True)]

    def _server_of(self, shard: int) -> int:
        """Returns the server that this worker believes to have a shard."""
        ring = self._servers[shard:] + self._servers[:shard]
        server = next((server for server in ring if server not in self.lost), None)
        if server is None or (server != ring[0] and not self._copies):
            raise self._gone(shard)
        return server

    def _checked(self, reply: Message, shard: int) -> Message:
        if reply.kind is MessageKind.LOST:
            raise self._gone(shard)
        if reply.kind is MessageKind.FAILED:
            raise Error(f"the optimizer of shard {shard} failed: {reply.payload.decode()}")
        return reply

    def _gone(self, shard: int) -> PeerLost:
        server = self._servers[shard]
        copy = "and so is its copy" if self._copies else "and there are no copies"
        return PeerLost(
            f"ParameterServer: shard {shard} of the parameters is lost with rank {server}, {copy}. Load the last "
            "checkpoint on the other ranks",
            server,
        )
