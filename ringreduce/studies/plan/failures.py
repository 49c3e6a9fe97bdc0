"""Goodput: the part of the time in which training makes progress that it keeps, if hosts fail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from ringreduce.settings import Table

__all__ = ["Failures", "Goodput", "best_interval", "goodput"]

HOUR, DAY = 3600.0, 86400.0


class Failures(Table):
    """How often hosts fail, and what that costs. In files it is the table ``[failures]``.

    Attributes:
        mtbf_hours: The mean time between two failures of one host, its links included. Failures are independent, and
            the times between them are exponential.
        checkpoint_s: The seconds for which training stands still while it writes a checkpoint.
        interval_s: The seconds of training between two checkpoints. None means Daly's optimum.
        restart_s: The seconds from a failure to the first step after it, on a spare host.
        repair_hours: The time until a failed host is a spare one.
        spares: The spare hosts at the beginning. Without any, training waits for a repair; if it is elastic, it
            continues with the hosts that are left.
        elastic: Whether the others keep their state, so that a failure costs no steps since the last checkpoint, and
            no checkpoints are needed.
        change_s: The seconds that a change of the hosts takes, if training is elastic (docs/elastic.md).
    """

    mtbf_hours: PositiveFloat
    checkpoint_s: NonNegativeFloat = 0.0
    interval_s: PositiveFloat | None = None
    restart_s: NonNegativeFloat = 0.0
    repair_hours: NonNegativeFloat = 0.0
    spares: NonNegativeInt = 0
    elastic: bool = False
    change_s: NonNegativeFloat = 0.0


@dataclass
class Goodput:
    """Where the time of all hosts goes, in parts of the whole that add up to one.

    Attributes:
        useful: Progress that is kept.
        checkpoints: Writing checkpoints.
        again: Steps that are made a second time.
        standing: Restarts, changes of the hosts, and waiting for repairs.
        missing: Hosts that are missing while the others train.
        failures: The number of failures.
    """

    useful: float = 0.0
    checkpoints: float = 0.0
    again: float = 0.0
    standing: float = 0.0
    missing: float = 0.0
    failures: int = 0


def best_interval(checkpoint_s: float, mtbf_s: float) -> float:
    """Returns the seconds of training between two checkpoints with which most time is useful.

    See Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 2006, equation 37.
    Its first term is Young's (1974).

    Args:
        checkpoint_s: The seconds that a checkpoint takes.
        mtbf_s: The mean time between failures of the whole job, in seconds.
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    part = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - checkpoint_s


def goodput(hosts: int, failures: Failures, days: float = 7.0, seed: int = 0) -> Goodput:
    """Simulates failures of hosts that train together.

    Args:
        hosts: The number of hosts.
        failures: How often they fail, and what that costs.
        days: The time that is simulated.
        seed: The seed of the random times.
    """
    return _Run(hosts, failures, days * DAY, random.Random(seed)).result()


class _Run:
    def __init__(self, hosts: int, failures: Failures, end: float, draw: random.Random) -> None:
        self.hosts, self.failures, self.end, self._draw = hosts, failures, end, draw
        self.alive, self.spares, self.now = hosts, failures.spares, 0.0
        self.repairs: list[float] = []  # the times at which failed hosts come back, in order
        self.found = Goodput()
        mtbf = failures.mtbf_hours * HOUR / hosts
        best = best_interval(failures.checkpoint_s, mtbf) if failures.checkpoint_s else math.inf
        self.interval = math.inf if failures.elastic else failures.interval_s or best

    def result(self) -> Goodput:
        while self.now < self.end:
            fails = self.now + self._draw.expovariate(max(self.alive, 1) / (self.failures.mtbf_hours * HOUR))
            comes = self.repairs[0] if self.repairs and self.alive < self.hosts else math.inf
            until = min(fails, comes, self.end)
            self._train(until - self.now, until == fails)
            self.now = until
            if until == fails and until < self.end:
                self._fail()
            elif until == comes and until < self.end:
                self._repaired()
                self._join()
        for name in ("useful", "checkpoints", "again", "standing", "missing"):
            setattr(self.found, name, getattr(self.found, name) / self.end)
        return self.found

    def _train(self, seconds: float, ends_in_failure: bool) -> None:
        share, found = self.alive / self.hosts, self.found
        found.missing += seconds * (1 - share)
        if math.isinf(self.interval):
            # Without checkpoints, and without copies of the state, a failure would lose everything: count it as kept.
            found.useful += seconds * share
            return
        cycle = self.interval + self.failures.checkpoint_s
        whole, rest = divmod(seconds, cycle)
        trained = min(rest, self.interval)
        found.useful += share * (whole * self.interval + (0.0 if ends_in_failure else trained))
        found.again += share * (trained if ends_in_failure else 0.0)
        found.checkpoints += share * (whole * self.failures.checkpoint_s + rest - trained)

    def _fail(self) -> None:
        self.found.failures += 1
        self.repairs.append(self.now + self.failures.repair_hours * HOUR)
        self._repaired()
        if self.spares:
            self.spares -= 1
        elif self.failures.elastic and self.alive > 1:
            self.alive -= 1
            self._stand(self.failures.change_s)
            return
        else:
            self._stand(max(self.repairs[0] - self.now, 0.0))
            self._repaired()
            self.spares -= 1
        self._stand(self.failures.change_s if self.failures.elastic else self.failures.restart_s)

    def _repaired(self) -> None:
        """Counts the hosts that have come back as spares."""
        while self.repairs and self.repairs[0] <= self.now:
            self.repairs.pop(0)
            self.spares += 1

    def _join(self) -> None:
        """Lets spares take the places of missing hosts."""
        joining = min(self.spares, self.hosts - self.alive)
        self.alive, self.spares = self.alive + joining, self.spares - joining
        self._stand(self.failures.change_s)

    def _stand(self, seconds: float) -> None:
        passed = min(seconds, self.end - self.now)
        self.found.standing += passed
        self.now += passed
        if passed < seconds:
            self.now = self.end
