"""The collectives and their properties, as csrc/schedule/collective.h lists them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ringreduce._engine import schedules as _engine

__all__ = ["COLLECTIVES", "Collective"]

Holds = Literal["nothing", "whole", "on_root", "own_block", "exchanged", "up_to_own", "before_own"]


Order = Literal["any", "kept", "at_once"]


class Collective(NamedTuple):
    """A collective.

    Attributes:
        name: its name, such as "all_reduce".
        reduces: whether it combines values.
        before: what a rank's array holds before: "whole" is the whole buffer on every rank, "on_root" on the root
            alone; "own_block" is a rank's block of the buffer; "exchanged" is a block for each rank, or from each;
            "up_to_own" is the whole buffer, combined from the ranks up to this one, and "before_own" from those before
            it.
        after: what a rank's array holds after it.
        bus_times: with ``bus_of_others``, the bytes that count as bandwidth of the bus: a multiple of the whole
            buffer, as nccl-tests define them.
        bus_of_others: whether (n - 1) / n of the buffer count, for n ranks, because a rank has one block itself.
    """

    name: str
    reduces: bool
    before: Holds
    after: Holds
    bus_times: int
    bus_of_others: bool

    @property
    def rooted(self) -> bool:
        """Whether it has a root."""
        return "on_root" in (self.before, self.after)

    @property
    def has_blocks(self) -> bool:
        """Whether the buffer consists of a block for each rank."""
        return bool({"own_block", "exchanged"} & {self.before, self.after})

    @property
    def bus_formula(self) -> str:
        """The bytes of the bus in sizes of the whole buffer, as a formula in n: "2 (n - 1) / n"."""
        times = f"{self.bus_times} " * (self.bus_times > 1)
        return f"{times}(n - 1) / n" if self.bus_of_others else str(self.bus_times)

    def bus_factor(self, ranks: int) -> float:
        """Returns the bus bandwidth divided by the algorithm bandwidth."""
        return self.bus_times * ((ranks - 1) / ranks if self.bus_of_others else 1.0)


COLLECTIVES = {row[0]: Collective(*row) for row in _engine.collectives()}
"""All collectives by name."""
