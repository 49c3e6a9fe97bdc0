"""What a model or a described network says of a plan's cells, beside what is measured."""

from __future__ import annotations

from argparse import Namespace
from functools import cache
from pathlib import Path

from ringreduce.simulate.command import networks
from ringreduce.simulate.simulation import simulate
from ringreduce.study.plan import Cell

__all__ = ["Predictor"]


class Predictor:
    """Predicts by a file as ``ringreduce simulate --network`` takes it."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self.us = cache(self._us)

    def _us(self, cell: Cell, algorithm: str) -> float | None:
        """Microseconds; None where the model says nothing."""
        if cell.wire:
            return None
        try:
            network = networks(Namespace(network=self._model, world=cell.world))(cell.nbytes)
            return 1e6 * simulate(algorithm, cell.nbytes, network, cell.collective).seconds
        except NotImplementedError:
            return None
