"""When a step's gradients were exchanged, and how long the training thread waited for them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BucketTiming", "StepTimings"]


@dataclass(frozen=True)
class BucketTiming:
    """One bucket's exchange; times in seconds of ``time.monotonic()``.

    Attributes:
        index: the bucket's number, in the order in which buckets are sent.
        nbytes: the bytes of its gradients.
        submitted: when its last gradient had come and the exchange was handed over.
        began, ended: of the work on it, on the communicator's progress thread; NaN where that is not known.
    """

    index: int
    nbytes: int
    submitted: float
    began: float
    ended: float


@dataclass(frozen=True)
class StepTimings:
    """Where the communication of one backward pass went; all in seconds.

    Attributes:
        buckets: in the order in which they were sent.
        waits: (begin, end) of each time in which the training thread did nothing but wait.
    """

    buckets: list[BucketTiming] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)

    @property
    def communication(self) -> float:
        """How long buckets were under way, all together."""
        return sum(bucket.ended - bucket.began for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        """How long the training thread waited."""
        return sum(end - begin for begin, end in self.waits)

    @property
    def hidden(self) -> float:
        """Communication that went on while the backward pass did."""
        return max(self.communication - self.exposed, 0.0)
