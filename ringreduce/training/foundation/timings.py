"""The times at which a step's gradients were exchanged, and how long the training thread waited for them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BucketTiming", "StepTimings"]


@dataclass(frozen=True)
class BucketTiming:
    """The times of one bucket's exchange, in seconds of ``time.monotonic()``.

    Attributes:
        index: the bucket's number, in the order in which buckets are sent.
        nbytes: the bytes of its gradients.
        submitted: when its last gradient had come and the exchange was handed to the progress thread.
        began, ended: when the progress thread worked on it. NaN means unknown.
    """

    index: int
    nbytes: int
    submitted: float
    began: float
    ended: float


@dataclass(frozen=True)
class StepTimings:
    """The communication of one backward pass, in seconds.

    Attributes:
        buckets: the buckets' timings, in the order in which the buckets were sent.
        waits: (begin, end) of each wait of the training thread.
    """

    buckets: list[BucketTiming] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)

    @property
    def communication(self) -> float:
        """The total time that buckets took."""
        return sum(bucket.ended - bucket.began for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        """The total time that the training thread waited."""
        return sum(end - begin for begin, end in self.waits)

    @property
    def hidden(self) -> float:
        """The communication time that the backward pass hid."""
        return max(self.communication - self.exposed, 0.0)
