"""What ``algorithm="auto"`` has picked."""

from __future__ import annotations

__all__ = ["Choice"]


class Choice:
    """What ``algorithm="auto"`` picks, and why."""

    __slots__ = ("algorithm", "reason", "slice_bytes")

    def __init__(self, algorithm: str, slice_bytes: int, reason: str) -> None:
        self.algorithm = algorithm
        self.slice_bytes = slice_bytes
        self.reason = reason

    def __repr__(self) -> str:
        return f"{self.algorithm} in slices of {self.slice_bytes} bytes: {self.reason}"
