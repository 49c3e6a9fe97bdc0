"""Divides the state among the ranks of a changed group, and gives it to those that have none."""

from __future__ import annotations

import contextlib
import hashlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringreduce import errors
from ringreduce.communicator import Communicator
from ringreduce.training.elastic.checkpoints import Checkpoints
from ringreduce.training.elastic.entry import Membership
from ringreduce.training.elastic.losses import StateMismatch
from ringreduce.training.elastic.state import State
from ringreduce.training.elastic.trees import first_difference
from ringreduce.training.foundation.transfer import fill
from ringreduce.training.sharded_optimizer.regroup import StateLost

__all__ = ["Settling"]


@dataclass
class Report:
    """A rank's message to the others after the group has changed."""

    has_state: bool
    digest: bytes  # of what must be the same on all ranks
    place: int | None  # its rank when the state was last divided
    size: int  # the number of ranks at that time
    torn: bool
    joined: bool  # rather than there from the start
    since: int  # of its checkpoints


class Settling:
    """The part of a group that settles it after its ranks have changed.

    It ends like a step: with a vote, after which either all survivors use the new division of the state, or none.
    """

    def __init__(
        self, state: State, settings: dict[str, Any], checkpoints: Checkpoints | None, joined: bool
    ) -> None:
        self.state, self.settings, self.checkpoints = state, settings, checkpoints
        self.comm: Communicator = state.comm
        self.torn = False
        self.has_state = False
        self._restores = False  # whether the state is to be read from a checkpoint
        self._is_settled = False
        self._joined = joined
        self._place: int | None = None if joined else self.comm.rank
        self._size = 0 if joined else self.comm.size
        # Of the division of the state; whether the next one is ready.
        self._generation, self._ready = 0, False
        self._switches: list[Callable[[], None]] = []

    @abstractmethod
    def recover(self, error: BaseException) -> None:
        """Continues with the survivors."""

    def _settle(self) -> None:
        lines = [*self.state.description(), *(f"{key}: {value}" for key, value in self.settings.items())]
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        since = -1 if self.checkpoints is None else self.checkpoints.since
        own = Report(self.has_state, digest, self._place, self._size, self.torn, self._joined, since)
        reports: list[Report] = self.comm.all_gather_object(own)
        have = [rank for rank, report in enumerate(reports) if report.has_state]
        if any(report.digest != reports[(have or [0])[0]].digest for report in reports):
            self._part(lines, have)
            return
        self._settle_alike(reports, have)

    def _part(self, lines: list[str], have: list[int]) -> None:
        """Excludes ranks whose state differs. They raise, and if no rank has a state yet, all raise."""
        everybodys = self.comm.all_gather_object(lines)
        reference = everybodys[(have or [0])[0]]
        other = [rank for rank, found in enumerate(everybodys) if found != reference]
        worst = self.comm.rank if self.comm.rank in other else other[0]
        mine, theirs = first_difference(everybodys[worst], reference)
        problem = f"rank {worst}'s state differs from the group's. The first difference: {mine}; the group has {theirs}"
        if not have:
            raise StateMismatch(problem)
        if self.comm.rank in other:
            self.comm.close()
            raise StateMismatch(problem)
        with contextlib.suppress(errors.Error):
            self.comm.barrier()  # fails when one of them has left: if this rank left first, they would not hear why
        self.recover(errors.PeerLost(problem, other[0]))  # as those do that notice its end sooner

    def _settle_alike(self, reports: list[Report], have: list[int]) -> None:
        comm, state = self.comm, self.state
        starts = not have
        have = have or [0]
        lack = [rank for rank in range(comm.size) if rank not in have]
        size_before = max(report.size for report in reports) or comm.size
        torn = [rank for rank, report in enumerate(reports) if report.torn]
        now = Membership(comm, [report.place for report in reports], size_before, torn)
        if self.checkpoints is not None:
            self.checkpoints.begin(comm, max(report.since for report in reports))
        seed, switches, lost = 0, [], None
        restores = self._restores or (starts and self.checkpoints is not None and self.checkpoints.resume)
        try:
            if starts and not restores and all(report.joined for report in reports):
                raise StateLost("all ranks that had the state are gone")
            for entry in state.entries:
                entry.mend(now)
            seed = self._give_state(have, lack)
            switches = [entry.prepare(now) for entry in state.entries]
        except StateLost as error:  # on all ranks
            if self.checkpoints is None:
                raise
            restores, lost = True, error
        if restores and (written_by := self._restore()):
            size_before, switches = written_by, []
        elif lost is not None:
            raise lost
        joined = comm.rank in lack and not starts

        def switch() -> None:
            for each in filter(None, switches):
                each()
            state.follow_world(comm.size / size_before)
            if joined:
                state.seed(seed)
            self._place, self._size = comm.rank, comm.size
            self.torn = self._restores = False

        latest = int(comm.all_reduce(np.array([self._generation]), "max")[0])
        self._switches, self._ready, self.has_state, self._generation = [switch], True, True, latest
        comm.barrier()
        self._switch(latest + 1)
        self._is_settled = True

    def _restore(self) -> int:
        """Loads the newest checkpoint, if there is one, and returns the number of ranks that wrote it."""
        assert self.checkpoints is not None
        self.has_state, self._place, self._restores = False, None, True  # until all have loaded it
        nothing = Membership(self.comm, [None] * self.comm.size, 0, [])
        for switch in filter(None, [entry.prepare(nothing) for entry in self.state.entries]):
            switch()
        return self.checkpoints.restore(self.state, self.comm)

    def _give_state(self, have: list[int], lack: list[int]) -> int:
        """Returns the seed of the first rank that has the state."""
        if not lack:
            return 0
        state, is_source = self.state, self.comm.rank in have
        description, tensors = state.shared() if is_source else (None, [])
        description = self.comm.broadcast_object(description, have[0])
        if not is_source:
            tensors = state.receiving(description)
        fill(self.comm, tensors, have, lack)
        if not is_source:
            state.load_shared(description, tensors)
        return int(description["seed"])

    def _switch(self, generation: int) -> None:
        for switch in self._switches:
            switch()
        self._generation = generation
        self._drop()

    def _drop(self) -> None:
        self._switches, self._ready = [], False
