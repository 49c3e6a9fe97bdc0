"""The arguments of DataParallel that must be the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]

MB = 1 << 20
WIRES = (None, "bf16", "fp16", "int8", "fp8")


@dataclass(frozen=True)
class Options:
    """See :class:`ringreduce.DataParallel`."""

    bucket_mb: float
    first_bucket_mb: float
    find_unused_parameters: bool
    static_graph: bool
    broadcast_buffers: bool
    wire: str | None
    logical_shards: int | None

    def check(self, ranks: int) -> None:
        """Raises ValueError where one is bad, or does not go with another."""
        for name in ("bucket_mb", "first_bucket_mb"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.wire not in WIRES:
            raise ValueError(f"wire must be one of {WIRES}, not {self.wire!r}")
        shards = self.logical_shards
        if shards is None:
            return
        if shards < 1 or shards % ranks:
            raise ValueError(
                f"logical_shards must be a multiple of the number of ranks, {ranks}, not {shards}"
            )
        if self.wire is not None or self.static_graph:
            raise ValueError("logical_shards does not go with wire or static_graph")

    @property
    def limits(self) -> tuple[float, float]:
        """Bytes of a first bucket, and of the others."""
        return self.first_bucket_mb * MB, self.bucket_mb * MB
