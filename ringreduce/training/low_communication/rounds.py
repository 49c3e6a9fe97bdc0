"""Rounds: the steps between two synchronisations of all parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.low_communication.average import Average
from ringreduce.training.low_communication.outer import Outer, Tensor
from ringreduce.training.low_communication.pace import Pace

__all__ = ["Rounds"]


class Rounds(Outer):
    """Synchronises all parameters at once, at the end of rounds of ``every`` steps.

    Args:
        start: the number of steps at the start that are rounds of their own.
        adaptive: whether slower ranks make fewer steps in a round.
    """

    def __init__(
        self, parameters: Iterable[Tensor], comm: Communicator | None, every: int, *, start: int, adaptive: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(parameters, comm, every, start=start, adaptive=adaptive, **options)
        self._require("start", start, start >= 0, "at least 0")
        self.start = start
        self._adaptive = adaptive
        self._pace = Pace(self.comm.size, every, adaptive)
        self._average: Average

    @property
    def idle(self) -> bool:
        local = self.steps - self.start
        return local >= 0 and local % self.every >= self._pace.steps[self.comm.rank]

    @property
    def left(self) -> int:
        return 1 if self.steps < self.start else self.every - (self.steps - self.start) % self.every

    @torch.no_grad()
    def step(self) -> None:
        if not self.idle:
            self._pace.end_step()
        self.steps += 1
        if self.steps <= self.start:
            self._synchronise(weight=1.0)
        elif (self.steps - self.start) % self.every == 0:
            self._synchronise(self._pace.weight(self.comm.rank))
            self._pace.next_round(self._average.seconds)
        self.timings = self._average.timings()
        self._pace.begin_step()

    @abstractmethod
    def _synchronise(self, weight: float) -> None:
        """Synchronises the parameters. weight: that of this rank's parameters in the average."""

    def _averaged(self, values: list[Tensor], weight: float) -> list[Tensor]:
        self._average.start(values, self.steps, self._pace.seconds(), weight)
        self.bytes_sent += self._average.nbytes
        return self._average.finish()

    def regroup(self, comm: Communicator) -> None:
        super().regroup(comm)
        self._average.regroup(comm)
        self._pace = Pace(comm.size, self.every, self._adaptive)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "pace": self._pace.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        self._pace.load_state_dict(saved["pace"])
