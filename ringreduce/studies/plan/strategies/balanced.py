"""DataParallel with shares of each batch that follow the ranks' speed (docs/training.md#unequal-ranks)."""

from __future__ import annotations

from typing import ClassVar

from ringreduce.studies.plan.strategies.data_parallel import DataParallel
from ringreduce.studies.plan.variation import Variation

__all__ = ["Balanced"]


class Balanced(DataParallel):
    """ringreduce.DataParallel with ringreduce.Balance. It differs from DataParallel if the cluster's ranks do."""

    title: ClassVar[str] = "balanced shares"

    def slowdown(self, variation: Variation, world: int) -> float:
        return variation.balanced(world)
