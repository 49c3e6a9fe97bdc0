"""Shares of each batch that follow the ranks' measured speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.errors import Error
from ringreduce.training.balance.batch_shares import equal_shares, fair_shares, step_time
from ringreduce.training.foundation.agreement import check_number, check_same, check_whole

__all__ = ["Balance"]

MEMORY = 0.5  # the weight of earlier windows in the estimate of a rank's cost


class Balance:
    """Divides each global batch among the ranks in proportion to their speed.

    Every ``every`` steps the ranks tell each other how long their steps took. If other shares would make a step faster
    by more than ``tolerance``, all ranks change to them at the same step. Otherwise the shares stay: they do not follow
    noise. The contents of the global batches do not change, only which rank gets which samples.

    A gradient that is averaged over ranks with different shares must count each sample once. Multiply a rank's mean
    loss by :meth:`weight`: the average of the gradients is then the gradient of the mean over all samples.

    Args:
        comm: the group. None takes :func:`ringreduce.world`. Every rank makes the same calls.
        batch: the number of samples in a global batch.
        every: the number of steps between two comparisons.
        tolerance: the share of a step's time that a change must save.
        smallest: the smallest share of a rank, such as its number of micro-batches.
        ahead: the number of batches that the data loader takes from the sampler before they are used, for torch's
            DataLoader ``num_workers * prefetch_factor``. A change takes effect that many steps later.

    Attributes:
        steps: the number of steps made.

    Raises:
        ValueError: an argument is out of range, or a rank would get no sample.
        Error: the ranks' arguments differ. The message names the first difference.
    """

    def __init__(
        self,
        comm: Communicator | None = None,
        *,
        batch: int,
        every: int = 10,
        tolerance: float = 0.05,
        smallest: int = 1,
        ahead: int = 0,
    ) -> None:
        self.comm = chosen(comm)
        own = {"batch": batch, "every": every, "tolerance": tolerance, "smallest": smallest, "ahead": ahead}
        check_same(
            self.comm, {name: repr(value) for name, value in own.items()}, "Balance: the ranks' arguments"
        )
        for name, value, least in (("every", every, 1), ("smallest", smallest, 1), ("ahead", ahead, 0)):
            check_whole(value, name, least)
        check_whole(batch, "batch", 1)
        check_number(tolerance, "tolerance")
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance must be at least 0 and less than 1, not {tolerance}")
        if batch < smallest * self.comm.size:
            raise ValueError(
                f"batch must give each of the {self.comm.size} ranks {smallest} or more samples, not be {batch}"
            )
        self.batch, self.every, self.tolerance = batch, every, tolerance
        self.smallest, self.ahead = smallest, ahead
        self.steps = 0
        # (first step, shares), in the order of the steps. Only the last two matter, but ahead may need more.
        self._plan: list[tuple[int, list[int]]] = [(0, equal_shares(batch, self.comm.size))]
        self._costs: np.ndarray[Any, Any] | None = (
            None  # of a sample on each rank, relative to the mean of the ranks
        )
        self._window: list[float] = []  # this rank's seconds per sample
        self._measured = 0.0

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of samples of each rank in the current step. They add up to the batch."""
        return self._shares_at(self.steps)

    def shares_at(self, step: int) -> tuple[int, ...]:
        """Returns the shares in a step, counted from 0, for a sampler.

        Raises:
            Error: the step is more than ``ahead`` steps after the current one, so that its shares may still change.
        """
        if step > self.steps + self.ahead:
            raise Error(
                f"the data loader takes batch {step} in step {self.steps}, before its shares are decided. Pass "
                "ahead=num_workers * prefetch_factor to Balance"
            )
        return self._shares_at(step)

    def _shares_at(self, step: int) -> tuple[int, ...]:
        return tuple(next(shares for first, shares in reversed(self._plan) if first <= step))

    def weight(self, samples: int) -> float:
        """Returns the factor for the mean loss of this rank's samples, before gradients are averaged over the ranks."""
        return samples * self.comm.size / self.batch

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Returns a context whose duration counts as this rank's work in the current step.

        Put into it what depends on the number of samples and does not wait for other ranks: the forward pass, and
        the backward pass if gradients are not exchanged in it.
        """
        began = time.monotonic()
        yield
        self._measured += time.monotonic() - began

    def step(self, seconds: float | None = None) -> None:
        """Ends a step. Every rank must call it.

        Args:
            seconds: how long this rank has worked in the step, without waiting for others. None takes what
                :meth:`measure` has measured.

        Raises:
            ValueError: nothing has been measured, or seconds is not positive.
        """
        seconds = self._measured if seconds is None else seconds
        if not seconds > 0:
            raise ValueError(
                f"seconds must be positive, not {seconds!r}; use measure(), or pass what took how long"
            )
        self._window.append(seconds / self.shares[self.comm.rank])
        self._measured = 0.0
        self.steps += 1
        if len(self._window) == self.every:
            self._compare()

    def _compare(self) -> None:
        own, self._window = np.array([self._window]), []
        times = self.comm.all_gather(own)  # [ranks, steps]
        # Steps may differ in their work per sample, for example in the length of the sequences, but all ranks have the
        # same step at the same time. The median over the steps is not affected by a pause of a rank.
        costs = np.median(times / times.mean(axis=0), axis=1)
        if self._costs is not None:
            costs = MEMORY * self._costs + (1 - MEMORY) * costs
        self._costs = costs
        now = self._plan[-1][1]
        better = fair_shares(self.batch, costs.tolist(), self.smallest)
        if step_time(better, costs.tolist()) < (1 - self.tolerance) * step_time(now, costs.tolist()):
            self._plan = [*self._past(), (self.steps + self.ahead, better)]

    def _past(self) -> Sequence[tuple[int, list[int]]]:
        """Returns the plan without the entries that no step needs any more."""
        needed = [number for number, (first, _) in enumerate(self._plan) if first <= self.steps]
        return self._plan[needed[-1] :]

    def regroup(self, comm: Communicator) -> None:
        """Continues with the ranks of another group. Every rank of it must call it.

        Ranks that were there keep their estimates, and others count as the mean of these. The shares change at once.
        :mod:`ringreduce.elastic` calls it when ranks are lost or join.

        Raises:
            ValueError: a rank would get less than the smallest share.
        """
        own = np.nan if self._costs is None else self._costs[self.comm.rank]
        costs = comm.all_gather(np.array([own]))
        known = ~np.isnan(costs)
        costs = np.where(known, costs, costs[known].mean() if known.any() else 1.0)
        self._plan = [(0, fair_shares(self.batch, costs.tolist(), self.smallest))]
        self._costs = costs / costs.mean() if known.any() else None
        self.comm, self._window, self._measured = comm, [], 0.0

    # --- saving ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, of numbers and lists. Measurements since the last comparison are not part of it."""
        costs = None if self._costs is None else self._costs.tolist()
        plan = [[first, list(shares)] for first, shares in self._plan]
        return {"batch": self.batch, "steps": self.steps, "plan": plan, "costs": costs}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Loads a state that :meth:`state_dict` returned. On another number of ranks, all begin with equal shares.

        Raises:
            ValueError: the state is for another batch, or gives a rank less than the smallest share.
        """
        if saved["batch"] != self.batch:
            raise ValueError(f"saved is for a batch of {saved['batch']}, not of {self.batch}")
        self.steps, self._window = int(saved["steps"]), []
        if len(saved["plan"][-1][1]) != self.comm.size:
            return
        for _, shares in saved["plan"]:
            for rank, share in enumerate(shares):
                if share < self.smallest:
                    raise ValueError(
                        f"saved gives rank {rank} {share} samples, and the smallest share is {self.smallest}"
                    )
        self._plan = [(int(first), [int(share) for share in shares]) for first, shares in saved["plan"]]
        self._costs = None if saved["costs"] is None else np.array(saved["costs"])
