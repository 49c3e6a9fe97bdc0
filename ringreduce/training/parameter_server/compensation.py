"""Compensates for the delay of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ringreduce.training.parameter_server.wire import Message

__all__ = ["Compensation"]

TINY = 1e-7  # as in the paper


class Compensation:
    """Corrects a delayed gradient to the first order, with its own square in place of the Hessian (DC-ASGD).

    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation" (2017), add strength * g * g *
    (w - w_then) to a gradient g that a worker computed with the values w_then. The adaptive variant divides the
    strength by the root of a running mean of g * g.

    Args:
        strength: the paper's lambda.
        decay: the decay of the running mean. None keeps the strength constant.
    """

    def __init__(self, strength: float, decay: float | None) -> None:
        self._strength, self._decay = strength, decay
        self._then: dict[int, list[Any]] = {}  # by worker
        self._squares: list[Any] | None = None

    def mark(self, worker: int, values: Sequence[Any]) -> None:
        """Notes that the worker computes its next gradient with these values.

        Args:
            values: the memory of the shard's parts and tables.
        """
        known = self._then.setdefault(worker, [value.clone() for value in values])
        for then, now in zip(known, values, strict=True):
            then.copy_(now)

    def forget(self, worker: int) -> None:
        self._then.pop(worker, None)

    def apply(self, message: Message, values: Sequence[Any]) -> None:
        """Corrects a message's gradients in place."""
        if self._decay is not None and self._squares is None:
            self._squares = [value.new_zeros(value.shape) for value in values]
        then = self._then.get(message.worker)
        for place, (gradient, rows) in enumerate(_gradients(message)):
            delay = None if then is None else _of(values[place], rows) - _of(then[place], rows)
            strength = self._strength_for(place, rows, gradient)
            if delay is not None:
                gradient.addcmul_(delay.mul_(gradient).mul_(strength), gradient)

    def _strength_for(self, place: int, rows: Any, gradient: Any) -> Any:
        if self._squares is None or self._decay is None:
            return self._strength
        mean = _of(self._squares[place], rows) * self._decay
        mean.addcmul_(gradient, gradient, value=1 - self._decay)
        if rows is None:
            self._squares[place] = mean
        else:
            self._squares[place][rows] = mean
        return self._strength / (mean + TINY).sqrt_()


def _gradients(message: Message) -> Iterator[tuple[Any, Any]]:
    """Yields each gradient, and the numbers of its rows if it is sparse."""
    for gradient in message.dense or ():
        yield gradient, None
    for rows, gradient in message.rows:
        yield gradient, rows


def _of(values: Any, rows: Any) -> Any:
    return values if rows is None else values[rows]
