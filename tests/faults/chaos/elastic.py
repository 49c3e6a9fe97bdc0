"""What one rank of a trial with newcomers does: it works on, shrinks and grows, until the right ranks are together."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import ringreduce
from ringreduce.start.growing import growth
from tests.faults.chaos.faults import Tell, strike
from tests.faults.chaos.plan import Trial

ROUNDS = 4  # of work between two looks at who is there


class Elastic:
    """A member or a newcomer, known by its number: members have the first ones, in rank order."""

    def __init__(self, trial: Trial, number: int, store: str, tell: Tell) -> None:
        self.trial, self.number, self.store, self.tell = trial, number, store, tell
        self.expected = [one for one in range(trial.everyone) if one not in trial.lost_for_good]
        self.numbers: list[int | None] | None = None  # of the ranks, where they are known
        self.steps = 0
        growth._ANSWERS = 2.0

    def run(self) -> None:
        comm = self._come()
        while True:
            try:
                comm, over = self._work(comm)
                if over:
                    break
            except (ringreduce.PeerLost, ringreduce.TimeoutError) as error:
                self._check(comm, error)
                before, comm = comm, comm.shrink()
                before.close()
                self.numbers = None
        self.tell(finished=self.steps, members=self.numbers)

    def _come(self) -> Any:
        trial, options = self.trial, {"timeout": self.trial.patience, "transport": self.trial.transport}
        if self.number < trial.world:
            comm = ringreduce.init(self.number, trial.world, self.store, **options)
            comm.barrier()
            self.numbers = list(range(trial.world))
            self._await_fault()
        else:
            time.sleep(trial.newcomers[self.number - trial.world])
            self._await_fault()
            comm = ringreduce.join(self.store, **options)
        self.tell(joined=time.monotonic())
        return comm

    def _await_fault(self) -> None:
        fault = self.trial.fault_of(self.number)
        if fault is not None:
            timer = threading.Timer(fault.delay, strike, (fault.how, self.tell))
            timer.daemon = True
            timer.start()

    def _work(self, comm: Any) -> tuple[Any, bool]:
        """Returns the communicator to go on with, and whether all is done. All ranks of a group do the same."""
        self.numbers = comm.all_gather(np.array([self.number])).tolist()
        for _ in range(ROUNDS):
            x = np.full(1000, self.number + 1.0) + np.arange(1000) % 7
            want = sum(number + 1 for number in self.numbers) + comm.size * (np.arange(1000) % 7)
            if not np.array_equal(comm.all_reduce(x), want):
                self.tell(wrong=f"a sum of {self.numbers}")
            self.steps += 1
            if comm.pending():
                before, comm = comm, comm.grow()
                before.close()
                self.numbers = [*self.numbers, *[None] * (comm.size - len(self.numbers))]
                return comm, False
        if sorted(self.numbers) != self.expected:
            return comm, False
        comm.barrier()
        comm.close()
        return comm, True

    def _check(self, comm: Any, error: Any) -> None:
        """The error must be a loss, of a rank that is really lost: a newcomer, where its number is not known yet."""
        began = {
            "type": type(error).__name__,
            "rank": error.rank,
            "at": time.monotonic(),
            "text": str(error)[:400],
        }
        self.tell(error=began)
        if type(error) is not ringreduce.PeerLost:
            self.tell(crashed=f"{type(error).__name__}: {error}")
        if self.numbers is None or error.rank is None:
            return
        number = self.numbers[error.rank] if error.rank < len(self.numbers) else None
        lost = self.trial.lost_for_good
        if number not in lost and not (number is None and any(one >= self.trial.world for one in lost)):
            self.tell(misblamed=f"{comm}, of {self.numbers}: {error}")
