"""What collectives cost on one machine or cluster, and what follows for any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from ringreduce import schedules
from ringreduce.simulate.files import Table, first_problem
from ringreduce.simulate.network import Costs as NetworkCosts
from ringreduce.simulate.network import Flat, MessageCosts, Network
from ringreduce.simulate.simulation import Outcome, simulate

__all__ = ["CAUSES", "Costs", "Model", "of_their_own", "weights"]

BY_THE_BYTE = ("copy_out", "copy_in", "combine", "transfer")
CAUSES = ("round", "send", "receive", "change", "latency", *BY_THE_BYTE)


class Costs(Table):
    """What messages cost that go one way: inside hosts, or between them.

    Attributes:
        sizes: bytes of whole buffers for which costs are known. Between them they are interpolated, over the
            logarithm of the size; beyond them those of the nearest are taken.
        seconds: by cause, for each of sizes: of a round, of a message that is sent or received, of a change of a core's
            rank, a message's latency; of a byte that is copied out, copied in or combined, and one that goes through a
            host's link.
        corrections: by algorithm and world, for each of sizes: the logarithm of the measured time of an all-reduce over
            what these costs give. An algorithm that was not measured has none.
        errors: median and 90th percentile of the relative errors of what it was fitted to, without the corrections.
    """

    sizes: list[int] = Field(min_length=1)
    seconds: dict[str, list[float]]
    corrections: dict[str, dict[int, list[float]]] = Field(default_factory=dict)
    errors: tuple[float, float]

    @model_validator(mode="after")
    def _each_has_all_sizes(self) -> Costs:
        if missing := set(CAUSES) - set(self.seconds):
            raise ValueError(f"seconds: nothing is said of {', '.join(sorted(missing))}")
        rows = [*self.seconds.values(), *(row for rows in self.corrections.values() for row in rows.values())]
        if any(len(row) != len(self.sizes) for row in rows):
            raise ValueError(f"a list has not as many values as sizes, {len(self.sizes)}")
        return self

    def of(self, nbytes: int, crowd: float = 1) -> dict[str, float]:
        """Seconds by cause in a buffer of that size; crowd: ranks on a core."""
        found = weights(self.sizes, nbytes, crowd)
        return {cause: float(found[cause] @ values) for cause, values in self.seconds.items()}

    def correction(self, algorithm: str, world: int, nbytes: int) -> float:
        """How many times longer the algorithm takes than its costs say."""
        known = self.corrections.get(algorithm)
        if not known:
            return 1.0
        place, knots = math.log(max(nbytes, 1)), np.log(self.sizes)
        by_world = [np.interp(place, knots, known[each]) for each in sorted(known)]
        return math.exp(float(np.interp(math.log(world), np.log(sorted(known)), by_world)))


def of_their_own(collective: str) -> list[str]:
    """The algorithms of a collective; "synthesised" stands for one of the others where no network is known."""
    return [entry.name for entry in schedules.algorithms(collective) if entry.name != "synthesised"]


def weights(sizes: Sequence[int], nbytes: int, crowd: float) -> Mapping[str, Any]:
    """How much the cost for each size counts for a buffer of this one, by cause.

    crowd: ranks on a core. What is copied and combined shares caches with what its other ranks have.
    """
    knots = np.log(sizes)

    def near(size: float) -> Any:
        place = np.interp(math.log(max(size, 1)), knots, range(len(sizes)))
        return np.maximum(1 - np.abs(place - np.arange(len(sizes))), 0)

    alone, together = near(nbytes), near(nbytes * max(crowd, 1))
    return {cause: together if cause in BY_THE_BYTE else alone for cause in CAUSES}


class Model(Table):
    """What collectives cost on a machine or a cluster.

    Attributes:
        made: when and with what, for readers.
        cores: of a host, which its ranks share.
        inside, between: of messages inside hosts, and between them. None: not measured.
    """

    made: dict[str, str]
    cores: int = Field(ge=1)
    inside: Costs | None = None
    between: Costs | None = None

    def save(self, path: Path) -> None:
        """Writes the model as JSON."""
        path.write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n")

    @classmethod
    def load(cls, path: Path) -> Model:
        """A model that was saved.

        Raises:
            ValueError: the file cannot be read, or is no model. One line that names it.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise ValueError(f"{path}: no cost model: {first_problem(error)}") from error

    def network(self, world: int, nbytes: int, ranks_per_host: int | None = None) -> Network:
        """What messages of calls of that size meet.

        Args:
            ranks_per_host: None: all ranks on one host or, of a model of messages between hosts only, one.

        Raises:
            ValueError: the model does not say what such messages cost.
        """
        each = ranks_per_host or (world if self.inside else 1)
        if world % each:
            raise ValueError(f"world must be a multiple of ranks_per_host, {each}, not {world}")
        for place, wanted in (("inside", each > 1), ("between", world > each)):
            if wanted and getattr(self, place) is None:
                raise ValueError(
                    f"the model says nothing of messages {place} hosts: fit it on ranks that send some"
                )
        inside = self.inside.of(nbytes, each / self.cores) if self.inside else dict.fromkeys(CAUSES, 0.0)
        between = self.between.of(nbytes) if self.between and world > each else None
        costs = NetworkCosts(
            cores=self.cores, round_us=1e6 * (between or inside)["round"], switch_us=1e6 * inside["change"],
            inside=[_of_messages(inside)], between=[_of_messages(between)] if between else [],
        )  # fmt: skip
        rate = 1 / between["transfer"] if between else math.inf
        topology = Flat(hosts=world // each, ranks_per_host=each, rate=rate, latency_us=0)
        return Network(topology=topology, costs=costs)

    def unsure(self, collective: str, one_host: bool) -> float:
        """How far off one prediction in ten is, as a part of it; more for what it was not fitted to."""
        costs = self.inside if one_host else self.between
        return (
            1.0 if costs is None else costs.errors[1] if collective == "all_reduce" else 2 * costs.errors[1]
        )

    def predict(
        self,
        algorithm: str,
        nbytes: int,
        world: int,
        collective: str = "all_reduce",
        ranks_per_host: int | None = None,
        **options: Any,
    ) -> Outcome:
        """How long a collective takes here; other arguments and errors are those of :func:`simulate`.

        ``made_of["unexplained"]`` is what an all-reduce took beyond these costs where the model was fitted: below zero
        where it took less.
        """
        network = self.network(world, nbytes, ranks_per_host)
        outcome = simulate(algorithm, nbytes, network, collective, **options)
        # Of ranks on several hosts, several on each, nothing was measured.
        one_host = network.topology.ranks_per_host == world
        costs = self.inside if one_host else self.between if network.topology.ranks_per_host == 1 else None
        if costs is None or collective != "all_reduce" or schedules.custom(outcome.algorithm, collective):
            return outcome
        seconds = outcome.seconds * costs.correction(outcome.algorithm, world, nbytes)
        unexplained = {"unexplained": seconds - outcome.seconds}
        return replace(outcome, seconds=seconds, made_of={**outcome.made_of, **unexplained})

    def ranking(
        self, nbytes: int, world: int, collective: str = "all_reduce", ranks_per_host: int | None = None
    ) -> list[Outcome]:
        """Predictions of all algorithms, the fastest first."""
        names = of_their_own(collective)
        found = [self.predict(name, nbytes, world, collective, ranks_per_host) for name in names]
        return sorted(found, key=lambda outcome: outcome.seconds)


def _of_messages(cost: Mapping[str, float]) -> MessageCosts:
    return MessageCosts(
        send_us=1e6 * cost["send"], receive_us=1e6 * cost["receive"], latency_us=1e6 * cost["latency"],
        send_rate=1 / cost["copy_out"] if cost["copy_out"] else math.inf,
        receive_rate=1 / cost["copy_in"] if cost["copy_in"] else math.inf,
        combine_rate=1 / cost["combine"] if cost["combine"] else math.inf,
    )  # fmt: skip
