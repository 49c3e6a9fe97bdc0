"""The methods by which ringreduce.elastic moves a ShardedOptimizer to other ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.bucket import Slot
from ringreduce.training.foundation.optimizer_state import joined, numbered, on_cpu
from ringreduce.training.foundation.part import copy_options, options
from ringreduce.training.sharded_optimizer.division import Division
from ringreduce.training.sharded_optimizer.regroup import mend, move_states

__all__ = ["Regroupable"]


class Regroupable:
    """The part of a ShardedOptimizer that divides it among other ranks."""

    _division: Division
    _made_by: tuple[Any, dict[str, Any]]
    _copies: int
    _stage: int
    param_groups: list[dict[str, Any]]
    state: Any

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def described(self) -> list[str]:
        """Returns what must be the same on all ranks."""
        found = self._division.layout.described(self._division.slots, {})
        return [f"{name}: {value}" for name, value in found.items()]

    def mend(
        self, comm: Communicator, before: Sequence[int | None], size_before: int, torn: Sequence[int]
    ) -> None:
        """Makes the parameters of ranks whole that could not gather them. See :meth:`prepare_regroup`.

        Args:
            torn: the ranks of comm that could not.
        """
        mend(self._division, comm, before, size_before, self._copies, torn)

    def prepare_regroup(
        self, comm: Communicator, before: Sequence[int | None], size_before: int
    ) -> Callable[[], None]:
        """Divides the state among the ranks of another group. All of them must call it.

        The parameters of all ranks must be the same already. Nothing changes until the function that it returns is
        called.

        Args:
            before: for each rank of comm, its rank in the former group. None for a rank that was not in it.
            size_before: the size of the former group; 0 if the optimizer has no state yet.

        Raises:
            StateLost: a part was on lost ranks only. Every rank raises it.
        """
        division = Division(comm, self._division.layout.on(comm), self._stage, self._copies)
        for slots, groups in self._division.layout.batches:
            fresh = {slot: Slot(slot.number, slot.name, slot.parameter) for slot in slots}
            division.add(list(fresh.values()), {fresh[slot]: number for slot, number in groups.items()})
        division.begin(*self._made_by, self.param_groups)
        move_states(comm, self._division, division, before, size_before, self._copies, "ShardedOptimizer")

        def switch() -> None:
            if self._division.reducer is not None:
                self._division.unhook()
            self._division = division
            division.follow(division.shares, division.slots, self)
            self.state = division.own.inner.state
            copy_options(self.param_groups, division.own.inner.param_groups)

        return switch

    def shard(self) -> dict[int, Any]:
        """Returns a copy of this rank's part of the state: by parameter, a range of its elements, and their state."""
        return {
            piece.slot.number: (piece.first, piece.last, on_cpu(state, copy=True))
            for piece, state in self._division.own.states()
        }

    def load_shards(self, shards: Sequence[dict[int, Any]]) -> None:
        """Loads the parts of all ranks of a group of any size, see :meth:`shard`."""
        state = {}
        for slot in self._division.slots:
            if parts := [shard[slot.number] for shard in shards if slot.number in shard]:
                state[slot.number] = joined(slot.parameter, parts)
        self.load_state_dict({"state": state, "param_groups": numbered(self.param_groups)})

    def group_options(self) -> list[dict[str, Any]]:
        """Returns the options of the parameter groups."""
        return [options(group) for group in self.param_groups]

    def load_group_options(self, saved: Sequence[dict[str, Any]]) -> None:
        """Sets the options of the parameter groups."""
        copy_options(saved, self.param_groups)
