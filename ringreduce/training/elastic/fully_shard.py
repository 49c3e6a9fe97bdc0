"""FSDP2 models, which are recreated when the ranks change, and whose shards have copies on other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.elastic.sharding import Sharding
from ringreduce.training.foundation.part import copy_options
from ringreduce.training.sharded_optimizer.regroup import move_states, part_of

__all__ = ["FullyShard", "fill_buffers"]


class FullyShard:
    """A model that torch's ``fully_shard`` has divided among the ranks, and its optimizer.

    FSDP2 cannot change the ranks of a model. When ranks are lost or join, the model and the optimizer are therefore
    recreated, and each rank gets its shards of the parameters and of the optimizer's state from the ranks that have
    them. Use :attr:`model` and :attr:`optimizer`, which change then. Every shard has copies on other ranks: these get
    its gradients before each step, and make the same update.

    Args:
        make: returns the model and its optimizer, for torch's default process group
            (:func:`ringreduce.elastic.init_process_group`). Calls ``fully_shard`` without a mesh. All parameters must
            be in the optimizer, which must be one of torch's element-wise ones if there are copies.
        copies: the number of other ranks that hold a copy of each shard.

    Raises:
        ValueError: a parameter is not sharded or not in the optimizer, or the optimizer's copies would differ.
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]], *, copies: int = 1) -> None:
        if copies < 0:
            raise ValueError(f"copies must not be negative, not {copies}")
        self._make, self.copies = make, copies
        self.elastic: Any = None  # the Group of a loop
        self.sharding = Sharding(make, copies)
        self._follow()

    @property
    def model(self) -> Any:
        """The model."""
        return self.sharding.model

    @property
    def optimizer(self) -> Any:
        """The optimizer."""
        return self.sharding.optimizer

    def prepare(
        self, comm: Communicator, before: Sequence[int | None], size_before: int
    ) -> Callable[[], None]:
        """Makes the model for other ranks, as :meth:`ringreduce.ShardedOptimizer.prepare_regroup`."""
        old = self.sharding
        new = old
        if old.group is not torch.distributed.group.WORLD:
            new = Sharding(self._make, self.copies)
            fill_buffers(new.model, old.model.buffers())
            copy_options(old.optimizer.param_groups, new.optimizer.param_groups)
        move_states(comm, old, new, before, size_before, self.copies, "FullyShard")

        def switch() -> None:
            self.sharding = new
            self._follow()

        return switch

    def _follow(self) -> None:
        self.sharding.follow(self)

    def shard(self) -> dict[int, Any]:
        """Returns a copy of this rank's shards: by parameter, a range of elements, their values and their state."""
        sharding, found = self.sharding, {}
        for number in range(len(sharding.parameters)):
            values = sharding.own.values(number).items()
            copied = {key: value.clone() if torch.is_tensor(value) else value for key, value in values}
            begin, end = sharding.rows(number, sharding.rank, sharding.size)
            found[number] = begin, end, copied, sharding.own.kinds(number)
        return found

    @torch.no_grad()
    def load_shards(self, shards: Sequence[dict[int, Any]]) -> None:
        """Loads the shards of all ranks of a group of any size, see :meth:`shard`."""
        for owner, part in self.sharding.parts.items():
            for number in range(len(self.sharding.parameters)):
                saved = [shard[number] for shard in shards]
                part.make_state(number, {key: kind for key, kind in saved[0][3].items() if key})
                begin, end = self.sharding.rows(number, owner, self.sharding.size)
                places = begin, part.values(number)
                for first, last, values, kinds in saved:
                    low, high = max(first, begin), min(last, end)
                    for key, kind in kinds.items():
                        if low < high and isinstance(kind, torch.dtype):
                            part_of(places, key, low, high).copy_(part_of((first, values), key, low, high))


@torch.no_grad()
def fill_buffers(model: Any, values: Iterable[Any]) -> None:
    """Copies values to the buffers of a model."""
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)
