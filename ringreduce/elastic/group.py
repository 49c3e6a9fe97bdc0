"""The group of an elastic training: agrees on what is done, replaces lost ranks, and gives newcomers the state."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ringreduce import errors, log
from ringreduce.communicator import Communicator
from ringreduce.data_parallel.transfer import fill
from ringreduce.elastic.checkpoints import Checkpoints
from ringreduce.elastic.entries import Membership
from ringreduce.elastic.state import State
from ringreduce.elastic.trees import first_difference
from ringreduce.sharded_optimizer.regroup import StateLost

__all__ = ["Group", "Phase", "is_loss"]

LOOK_EVERY = 0.2  # seconds between two looks for newcomers
FRUITLESS = 3  # recoveries in a row without a lost rank or a step done, after which the error is raised


class Phase(IntEnum):
    """How far this rank is in a step."""

    OUTSIDE = 0
    OPEN = 1  # gradients are being computed
    PREPARED = 2  # this rank has all that it needs to apply them
    APPLIED = 3


def is_loss(error: BaseException | None) -> bool:
    """Returns whether an exception may mean that a rank was lost, so that the others can go on."""
    import torch.distributed as dist

    if isinstance(error, CannotGoOn):
        return False
    kinds: tuple[type[BaseException], ...] = (errors.PeerLost, errors.TimeoutError, errors.DamagedError)
    if dist.is_available():
        kinds += (dist.DistBackendError,)
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False


@dataclass
class Report:
    """What a rank tells the others when the group has changed."""

    has_state: bool
    digest: bytes  # of what must be the same on all ranks
    place: int | None  # its rank when the state was last divided
    size: int  # the number of ranks at that time
    torn: bool
    joined: bool  # rather than there from the start


class Group:
    """A communicator whose ranks change.

    Args:
        settings: what else must be the same on all ranks, by name.
        joins: makes the communicator of a newcomer, or None.

    Attributes:
        comm: the communicator of the ranks that are left.
        phase: how far this rank is in the current step.
        losses: the number of times that the group has shrunk.
    """

    def __init__(
        self, state: State, minimum: int, timeout: float, settings: dict[str, Any],
        joins: Callable[[], Communicator] | None, checkpoints: Checkpoints | None = None,
    ) -> None:  # fmt: skip
        self.state, self.minimum, self.timeout, self.settings = state, minimum, timeout, settings
        self.checkpoints = checkpoints
        self.comm = state.comm
        self.phase = Phase.OUTSIDE
        self.losses = 0
        self.torn = False
        self.has_state = False
        self._restores = False  # whether the state is to be read from a checkpoint
        self._fruitless = 0
        self._is_settled = False
        self._look, self._looked = joins is None, 0.0  # who lets a newcomer in has just looked
        alone = joins is not None
        self._place: int | None = None if alone else self.comm.rank
        self._size = 0 if alone else self.comm.size
        self._generation, self._ready = 0, False  # of the division of the state; whether the next one is ready
        self._switches: list[Callable[[], None]] = []
        self._joined = joins is not None
        if joins is not None:
            self._replace(joins())

    def _replace(self, comm: Communicator) -> None:
        before, self.comm = self.comm, comm
        self.state.comm = comm
        before.close()
        self._is_settled = False

    # --- a step ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins a step: lets newcomers in, if there are any."""
        self.settle()
        self._admit()
        self.phase = Phase.OPEN

    def commit(self) -> None:
        """Agrees that all ranks can apply the step. Does nothing if they have agreed already.

        If a rank is lost meanwhile, either all survivors return, or all raise.

        Raises:
            PeerLost: the step is lost, because a rank died before all had their gradients.
        """
        if self.phase != Phase.OPEN:
            return
        self.phase = Phase.PREPARED
        looks = self.comm.rank == 0 and time.monotonic() - self._looked > LOOK_EVERY
        flags = np.array([looks], np.int64)
        try:
            self.comm.all_reduce(flags, "max")
        except errors.Error as error:
            if not is_loss(error):
                raise
            self.recover(error)
            if self.phase != Phase.APPLIED:
                raise
            return
        self._look = bool(flags[0])
        self._apply()

    def _apply(self) -> None:
        self.phase = Phase.APPLIED
        self.state.step += 1
        self._fruitless = 0

    def finish(self, gather: Callable[[], None]) -> None:
        """Calls the last exchange of a step that is applied.

        If a rank is lost before or meanwhile, the survivors divide the state anew instead, which does the same.
        """
        if self._is_settled:
            try:
                gather()
                return
            except errors.Error as error:
                if not is_loss(error):
                    raise
                self.torn = True
                self.recover(error)
        self.torn = True
        self.settle()

    # --- after a loss ------------------------------------------------------------------------------------------

    def recover(self, error: BaseException) -> None:
        """Goes on with the survivors, and agrees with them on whether the current step is applied.

        Raises:
            CannotGoOn: a rank is alive, but does not come; or the group fails again and again with all ranks there.
        """
        while True:
            size = self.comm.size
            try:
                fewer = self.comm.shrink()
            except errors.TimeoutError as late:
                raise CannotGoOn(str(late), late.rank) from late
            self._replace(fewer)
            self._look = True
            if self.comm.size < size:
                self.losses += 1
                self._fruitless = 0
                log_loss(self, size)
            else:
                self._fruitless += 1
                if self._fruitless > FRUITLESS:
                    raise CannotGoOn(f"the group fails again and again: {error}") from error
            try:
                self._decide()
                return
            except errors.Error as again:
                if not is_loss(again):
                    raise
                error = again

    def _decide(self) -> None:
        own = [self.has_state, self.state.step, self.phase == Phase.PREPARED, self._generation, self._ready]
        found = self.comm.all_gather(np.array([own], np.int64)).reshape(-1, len(own))
        found = found[found[:, 0] == 1]
        if len(found):
            _, steps, prepared, generations, _ = found.T
            if self.phase == Phase.PREPARED and (steps.max() > self.state.step or prepared.all()):
                self._apply()
            if self._ready and self.has_state and generations.max() > self._generation:
                self._switch()
        self._drop()

    # --- the state of a changed group --------------------------------------------------------------------------

    def settle(self) -> None:
        """Divides the state among the ranks, and gives it to those that have none, until that works.

        Raises:
            Error: this rank's state is not like that of the others.
        """
        while not self._is_settled:
            try:
                self._settle()
            except errors.Error as error:
                if not is_loss(error):
                    raise
                self.recover(error)

    def _admit(self) -> None:
        """Lets newcomers in. Waits for them while there are too few ranks."""
        began = time.monotonic()
        while self._look or self.comm.size < self.minimum:
            self._look, self._looked = False, time.monotonic()
            try:
                if self._waiting():
                    self._replace(self.comm.grow())
                elif self.comm.size < self.minimum:
                    self._be_patient(began)
            except errors.Error as error:
                if not is_loss(error):
                    raise
                self.recover(error)
            self.settle()

    def _waiting(self) -> int:
        """Returns how many newcomers wait: none if they cannot find the group, and there are enough ranks."""
        try:
            return self.comm.pending()
        except ValueError:
            if self.comm.size < self.minimum:
                raise
            return 0

    def _be_patient(self, began: float) -> None:
        over = np.array([time.monotonic() - began > self.timeout])
        if self.comm.all_reduce(over, "max")[0]:
            raise CannotGoOn(
                f"{self.comm.size} ranks are left, of at least {self.minimum} (minimum), and no more came within "
                f"{self.timeout:g} s"
            )
        time.sleep(0.01)

    def _settle(self) -> None:
        lines = [*self.state.description(), *(f"{key}: {value}" for key, value in self.settings.items())]
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        own = Report(self.has_state, digest, self._place, self._size, self.torn, self._joined)
        reports: list[Report] = self.comm.all_gather_object(own)
        have = [rank for rank, report in enumerate(reports) if report.has_state]
        if any(report.digest != reports[(have or [0])[0]].digest for report in reports):
            self._part(lines, have)
            return
        self._settle_alike(reports, have)

    def _part(self, lines: list[str], have: list[int]) -> None:
        """Leaves ranks behind whose state is another. They raise, and if nobody has a state yet, all raise."""
        everybodys = self.comm.all_gather_object(lines)
        reference = everybodys[(have or [0])[0]]
        other = [rank for rank, found in enumerate(everybodys) if found != reference]
        worst = self.comm.rank if self.comm.rank in other else other[0]
        mine, theirs = first_difference(everybodys[worst], reference)
        problem = f"rank {worst} has another state than the group. The first difference: {mine}; the group has {theirs}"
        if not have:
            raise StateMismatch(problem)
        if self.comm.rank in other:
            self.comm.close()
            raise StateMismatch(problem)
        self.recover(errors.PeerLost(problem, other[0]))  # as those do that notice its end sooner

    def _settle_alike(self, reports: list[Report], have: list[int]) -> None:
        comm, state = self.comm, self.state
        starts = not have
        have = have or [0]
        lack = [rank for rank in range(comm.size) if rank not in have]
        size_before = max(report.size for report in reports) or comm.size
        torn = [rank for rank, report in enumerate(reports) if report.torn]
        now = Membership(comm, [report.place for report in reports], size_before, torn)
        seed, switches = 0, []
        restores = self._restores or (starts and self.checkpoints is not None and self.checkpoints.resume)
        try:
            if starts and not restores and all(report.joined for report in reports):
                raise StateLost("all ranks that had the state are gone")
            for entry in state.entries:
                entry.mend(now)
            seed = self._give_state(have, lack)
            switches = [entry.prepare(now) for entry in state.entries]
        except StateLost:  # on all ranks
            if self.checkpoints is None or not self.checkpoints.whole():
                raise
            restores = True
        if restores and (written_by := self._restore()):
            size_before, switches = written_by, []
        joined = comm.rank in lack and not starts

        def switch() -> None:
            for each in filter(None, switches):
                each()
            state.follow_world(comm.size / size_before)
            if joined:
                state.seed(seed)
            self._place, self._size = comm.rank, comm.size
            self.torn = self._restores = False

        self._switches, self._ready, self.has_state = [switch], True, True
        self._generation = int(comm.all_reduce(np.array([self._generation]), "max")[0])
        comm.barrier()
        self._switch()
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

    def _switch(self) -> None:
        for switch in self._switches:
            switch()
        self._generation += 1
        self._drop()

    def _drop(self) -> None:
        self._switches, self._ready = [], False


class StateMismatch(errors.Error):
    """A rank's state is not like that of the others, so it cannot take part."""


class CannotGoOn(errors.TimeoutError):
    """The ranks that are left cannot go on: they are too few, or do not all come together."""


def log_loss(group: Group, size: int) -> None:
    """Says in the log how many ranks are left."""
    log.say("elastic", logging.INFO, group.comm.rank, f"{group.comm.size} of {size} ranks are left")
