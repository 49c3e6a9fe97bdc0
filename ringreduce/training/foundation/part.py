"""A rank's part of the parameters, and the optimizer's state for it: this rank's own part, or a copy of another's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ringreduce.training.foundation.bucket import allocate, shaped_like
from ringreduce.training.foundation.shares import Piece, Share

__all__ = ["Part", "copy_options", "options"]

MEMBERS = {"params", "param_names"}  # the keys of a parameter group that are not options


class Part:
    """The pieces of parameters that a rank owns, with their gradients and an optimizer that updates them.

    Args:
        rank: the owner.

    Attributes:
        pieces: the pieces, in the order of the parameters.
        numbered: the same, by the number of the parameter.
        inner: the optimizer, made by :meth:`begin`.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pieces: list[Piece] = []
        self.numbered: dict[int, Piece] = {}
        self.inner: Any = None
        self._of: dict[Share, list[Piece]] = {}
        self._gradients: dict[Share, Any] = {}  # if it is a copy

    def add(self, shares: Sequence[Share]) -> None:
        """Adds the rank's pieces of shares."""
        own = {share: share.pieces_of(self.rank) for share in shares}
        self._of |= own
        self.pieces += sorted(
            (p for pieces in own.values() for p in pieces), key=lambda piece: piece.slot.number
        )
        self.numbered = {piece.slot.number: piece for piece in self.pieces}

    def of(self, share: Share) -> list[Piece]:
        """Returns the pieces of a share."""
        return self._of[share]

    def begin(self, optimizer_class: Any, defaults: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
        """Makes the optimizer, with the options of the groups of whole parameters."""
        self.inner = optimizer_class(
            [self.group(number, group) for number, group in enumerate(groups)], **defaults
        )

    def group(self, number: int, like: dict[str, Any]) -> dict[str, Any]:
        """Returns the parameter group of this number, with this part's pieces."""
        pieces = [piece.parameter for piece in self.pieces if piece.group == number]
        return {**options(like), "params": pieces}

    def gradient(self, share: Share) -> Any:
        """Returns the memory of the averaged gradients of a copy's pieces."""
        if share not in self._gradients:
            begin, end = share.placement.part(self.rank)
            self._gradients[share] = allocate(end - begin, share.bucket.like.dtype, share.bucket.like.device)
        return self._gradients[share]

    def hand_over(self, scattered: bool, used: set[int], own: bool) -> None:
        """Sets the gradients of the pieces.

        Args:
            scattered: whether ranks have the averaged gradients of their parts only.
            used: the numbers of the parameters that have a gradient, if they are scattered.
            own: whether this is the rank's own part.
        """
        for share, pieces in self._of.items():
            for piece in pieces:
                if not scattered:
                    gradient = piece.slot.parameter.grad
                    piece.parameter.grad = None if gradient is None else piece.of(gradient.detach())
                elif piece.slot.number in used:
                    memory = share.gradient if own else self.gradient(share)
                    piece.parameter.grad = self._within(memory, share, piece)
                else:
                    piece.parameter.grad = None

    def _within(self, gradient: Any, share: Share, piece: Piece) -> Any:
        begin = piece.slot.start + piece.first - share.placement.part(self.rank)[0]
        flat = gradient[begin : begin + piece.last - piece.first]
        return flat if piece.parameter.dim() == 1 else shaped_like(piece.parameter, flat)

    def step(self, groups: Sequence[dict[str, Any]]) -> None:
        """Updates the pieces, with the options of the groups."""
        copy_options(groups, self.inner.param_groups)
        self.inner.step()

    def forget(self) -> None:
        for piece in self.pieces:
            piece.parameter.grad = None

    def states(self) -> Iterator[tuple[Piece, dict[str, Any]]]:
        """Yields the pieces that have a state, and it."""
        for piece in self.pieces:
            if piece.parameter in self.inner.state:
                yield piece, self.inner.state[piece.parameter]


def options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter group without its parameters."""
    return {key: value for key, value in group.items() if key not in MEMBERS}


def copy_options(sources: Sequence[dict[str, Any]], targets: Sequence[dict[str, Any]]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.update(options(source))
