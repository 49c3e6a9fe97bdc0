"""Predictions of a cost model or a described network for the cells of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from ringreduce.studies.model import Model
from ringreduce.studies.simulate import Network, read_network, simulate
from ringreduce.studies.study.plan import Cell

__all__ = ["Predictor"]


class Predictor:
    """Predicts times from a file that ``ringreduce simulate --network`` accepts.

    Raises:
        ValueError: The file is invalid, or its network cannot have that number of ranks. The message is one line that
            names the file.
    """

    def __init__(self, path: Path, worlds: Iterable[int]) -> None:
        self._model = Model.load(path) if path.suffix == ".json" else None
        self._known: dict[tuple[Cell, str, str], float] = {}
        if self._model is None:
            network = read_network(path)
            try:
                self._networks = {world: _of_world(network, world) for world in worlds}
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error

    def us(self, cell: Cell, algorithm: str, transport: str, hosts: int) -> float:
        """Returns the predicted time in microseconds, or NaN.

        It is NaN for wire formats, and for calls whose messages the model has no costs for.
        """
        key = cell, algorithm, transport
        if key not in self._known:
            seconds = math.nan if cell.wire else self._seconds(cell, algorithm, transport, hosts)
            self._known[key] = round(1e6 * seconds, 4)
        return self._known[key]

    def _seconds(self, cell: Cell, algorithm: str, transport: str, hosts: int) -> float:
        if self._model is None:
            return simulate(algorithm, cell.nbytes, self._networks[cell.world], cell.collective).seconds
        each = cell.world // hosts
        if (each > 1 and "shm" not in transport) or each * hosts != cell.world:
            return math.nan
        if (each > 1 and self._model.inside is None) or (hosts > 1 and self._model.between is None):
            return math.nan
        return self._model.predict(algorithm, cell.nbytes, cell.world, cell.collective, each).seconds


def _of_world(network: Network, world: int) -> Network:
    own = len(network.build()[0]["node_of"])
    return network if own == world else network.for_world(world)
