"""The group of an elastic training: agrees on each step, replaces lost ranks, and gives newcomers the state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from ringreduce import errors, log
from ringreduce.communicator import Communicator
from ringreduce.start.growing.growth import NoDoor
from ringreduce.training.elastic.checkpoints import Checkpoints
from ringreduce.training.elastic.losses import CannotGoOn, is_loss
from ringreduce.training.elastic.settling import Settling
from ringreduce.training.elastic.state import State

__all__ = ["ElasticGroup", "Phase"]

LOOK_EVERY = 0.2  # seconds between two looks for newcomers
FRUITLESS = 3  # recoveries in a row without a lost rank or a step done, after which the error is raised


class Phase(IntEnum):
    """How far this rank is in a step."""

    OUTSIDE = 0
    OPEN = 1  # gradients are being computed
    PREPARED = 2  # this rank has all that it needs to apply them
    APPLIED = 3


class ElasticGroup(Settling):
    """A communicator whose ranks change.

    Args:
        settings: other values that must be the same on all ranks, by name.
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
        super().__init__(state, settings, checkpoints, joins is not None)
        self.minimum, self.timeout = minimum, timeout
        self.phase = Phase.OUTSIDE
        self.losses = 0
        self._length = 1  # of the current step
        self._fruitless = 0
        self._look, self._looked = joins is None, 0.0  # who lets a newcomer in has just looked
        if joins is not None:
            self._replace(joins())

    def _replace(self, comm: Communicator) -> None:
        before, self.comm = self.comm, comm
        self.state.comm = comm
        before.close()
        self._is_settled = False

    # --- a step ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begins a step, and admits newcomers if there are any."""
        self.settle()
        self._admit()
        self.phase = Phase.OPEN

    def commit(self, steps: int = 1) -> None:
        """Agrees that all ranks can apply the step. Does nothing if they have agreed already.

        If a rank is lost during the call, either all survivors return, or all raise.

        Args:
            steps: the number of steps that are done then.

        Raises:
            PeerLost: the step is lost, because a rank died before all had their gradients.
        """
        if self.phase != Phase.OPEN:
            return
        self.phase, self._length = Phase.PREPARED, steps
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
        self.state.step += self._length
        self._fruitless = 0

    def finish(self, gather: Callable[[], None]) -> None:
        """Calls the last exchange of a step that is applied.

        If a rank is lost before or during the call, the survivors divide the state again instead, which has the same
        effect.
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
        """Continues with the survivors, and agrees with them on whether the current step is applied.

        Raises:
            CannotGoOn: a rank is alive but does not respond; or the group fails repeatedly although all ranks are
                alive.
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
                    raise CannotGoOn(
                        f"the group keeps failing, although all of its ranks are alive: {error}"
                    ) from error
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
                self._switch(int(generations.max()))
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
        """Admits newcomers, and waits for them while there are too few ranks."""
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
        except (ValueError, NoDoor) as error:
            if self.comm.size < self.minimum:
                raise
            log.say("elastic", log.level_of(self.comm.rank), self.comm.rank, f"nobody can join: {error}")
            return 0

    def _be_patient(self, began: float) -> None:
        over = np.array([time.monotonic() - began > self.timeout])
        if self.comm.all_reduce(over, "max")[0]:
            raise CannotGoOn(
                f"only {self.comm.size} ranks are left, minimum is {self.minimum}, and no more joined within "
                f"{self.timeout:g} s"
            )
        time.sleep(0.01)


def log_loss(group: ElasticGroup, size: int) -> None:
    """Says in the log how many ranks are left."""
    log.say("elastic", logging.INFO, group.comm.rank, f"{group.comm.size} of {size} ranks are left")
