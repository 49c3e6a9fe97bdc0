"""The cost model of a machine or cluster, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from ringreduce import schedules
from ringreduce.settings import Table, first_problem
from ringreduce.studies.simulate.network import Costs as NetworkCosts
from ringreduce.studies.simulate.network import MessageCosts, Network
from ringreduce.studies.simulate.simulation import Outcome, simulate
from ringreduce.studies.simulate.topologies import Flat

__all__ = ["CAUSES", "Costs", "Model", "of_their_own", "weights"]

BY_THE_BYTE = ("copy_out", "copy_in", "combine", "transfer")
CAUSES = ("round", "send", "receive", "change", "latency", *BY_THE_BYTE)


class Costs(Table):
    """The costs of messages inside hosts, or of messages between hosts.

    Attributes:
        sizes: The sizes of the whole buffer, in bytes, for which costs are known. Between these sizes, costs are
            interpolated over the logarithm of the size. Beyond them, the costs of the nearest size apply.
        seconds: For each cause, the cost at each of ``sizes``, in seconds. "round" is the cost of a round, "send" and
            "receive" of a message, "change" of a switch from one rank to another on a core, and "latency" is the
            latency of a message. "copy_out", "copy_in", "combine" and "transfer" (through a host's link) are costs of
            a byte.
        corrections: For each algorithm and world, the logarithm at each of ``sizes`` of the measured time of an
            all-reduce divided by the time that the costs give. Algorithms that were not measured have none.
        busy: At each of ``sizes``, the part of an all-reduce in which the progress thread keeps a rank's core busy.
            Empty if it was not measured.
        errors: The median and the 90th percentile of the relative errors of the fit, without the corrections.
    """

    sizes: list[int] = Field(min_length=1)
    seconds: dict[str, list[float]]
    corrections: dict[str, dict[int, list[float]]] = Field(default_factory=dict)
    busy: list[float] = Field(default_factory=list)
    errors: tuple[float, float]

    @model_validator(mode="after")
    def _each_has_all_sizes(self) -> Costs:
        if missing := set(CAUSES) - set(self.seconds):
            raise ValueError(f"seconds: missing {', '.join(sorted(missing))}")
        rows = [*self.seconds.values(), *(row for rows in self.corrections.values() for row in rows.values())]
        rows += [self.busy] if self.busy else []
        if any(len(row) != len(self.sizes) for row in rows):
            raise ValueError(f"a list does not have one value for each of the {len(self.sizes)} sizes")
        return self

    def of(self, nbytes: int, crowd: float = 1) -> dict[str, float]:
        """Returns the cost of each cause in seconds, for a buffer of nbytes and ``crowd`` ranks on each core."""
        found = weights(self.sizes, nbytes, crowd)
        return {cause: float(found[cause] @ values) for cause, values in self.seconds.items()}

    def correction(self, algorithm: str, world: int, nbytes: int) -> float:
        """Returns the measured time of the algorithm divided by the time that the costs give."""
        known = self.corrections.get(algorithm)
        if not known:
            return 1.0
        place, knots = math.log(max(nbytes, 1)), np.log(self.sizes)
        by_world = [np.interp(place, knots, known[each]) for each in sorted(known)]
        return math.exp(float(np.interp(math.log(world), np.log(sorted(known)), by_world)))


def of_their_own(collective: str) -> list[str]:
    """Returns the names of a collective's algorithms, without "synthesised".

    On an unknown network "synthesised" only runs one of the others.
    """
    return [entry.name for entry in schedules.algorithms(collective) if entry.name != "synthesised"]


def weights(sizes: Sequence[int], nbytes: int, crowd: float) -> Mapping[str, Any]:
    """Returns, for each cause, the weights with which costs at ``sizes`` are interpolated for a buffer of nbytes.

    ``crowd`` is the number of ranks on a core. They share its caches, so copies and reductions cost what they cost in
    a buffer that is larger by this factor.
    """
    knots = np.log(sizes)

    def near(size: float) -> Any:
        place = np.interp(math.log(max(size, 1)), knots, range(len(sizes)))
        return np.maximum(1 - np.abs(place - np.arange(len(sizes))), 0)

    alone, together = near(nbytes), near(nbytes * max(crowd, 1))
    return {cause: together if cause in BY_THE_BYTE else alone for cause in CAUSES}


class Model(Table):
    """A cost model of the collectives on a machine or cluster.

    Attributes:
        made: When and on what the model was fitted, for readers.
        cores: The number of cores of a host, which its ranks share.
        inside: The costs of messages inside hosts, or None if they were not measured.
        between: The costs of messages between hosts, or None if they were not measured.
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
        """Loads a model that :meth:`save` wrote.

        Raises:
            ValueError: The file cannot be read, or is not a model. The message is one line and names the file.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise ValueError(f"{path} is not a cost model: {first_problem(error)}") from error

    def network(self, world: int, nbytes: int, ranks_per_host: int | None = None) -> Network:
        """Returns the network on which the simulator runs calls of this size.

        Args:
            world: The number of ranks.
            nbytes: The size of the whole buffer, in bytes.
            ranks_per_host: The number of ranks on each host. None puts all ranks on one host or, if the model has only
                costs between hosts, one rank on each.

        Raises:
            ValueError: The model lacks the costs of the messages, or ``world`` is not a multiple of
                ``ranks_per_host``.
        """
        each = ranks_per_host or (world if self.inside else 1)
        if world % each:
            raise ValueError(f"world must be a multiple of ranks_per_host, {each}, not {world}")
        for place, wanted in (("inside", each > 1), ("between", world > each)):
            if wanted and getattr(self, place) is None:
                raise ValueError(
                    f"the model has no costs of messages {place} hosts: fit it on ranks that exchange such messages"
                )
        inside = self.inside.of(nbytes, each / self.cores) if self.inside else dict.fromkeys(CAUSES, 0.0)
        between = self.between.of(nbytes) if self.between and world > each else None
        costs = NetworkCosts(
            cores=self.cores, round_us=1e6 * (between or inside)["round"], switch_us=1e6 * inside["change"],
            inside=[_of_messages(inside)], between=[_of_messages(between)] if between else [],
        )  # fmt: skip
        rate = 1 / between["transfer"] if between else math.inf
        topology = Flat(hosts=world // each, ranks_per_host=each, rate=rate, latency_us=0)
        fitted = self.made.get("transport", "").removeprefix("shm+")
        transport: Any = fitted if fitted in ("ofi", "mpi") else "tcp"
        return Network(topology=topology, costs=costs, transport=transport)

    def unsure(self, collective: str, one_host: bool) -> float:
        """Returns the relative error that nine of ten predictions stay within.

        It is doubled for collectives other than all_reduce, to which the model was not fitted.
        """
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
        change: Callable[[Network], Network] | None = None,
        **options: Any,
    ) -> Outcome:
        """Predicts how long a collective takes on this machine.

        ``made_of["unexplained"]`` of the result is the part of the time of an all-reduce that the costs do not
        explain: the time measured when the model was fitted, minus the time that the costs give. It may be negative.

        Args:
            algorithm: The algorithm's name.
            nbytes: The size of the whole buffer, in bytes.
            world: The number of ranks.
            collective: The collective.
            ranks_per_host: As for :meth:`network`.
            change: Returns the network to simulate in place of :meth:`network`'s.
            **options: Further arguments of :func:`ringreduce.simulate.simulate`.

        Raises:
            ValueError: As for :meth:`network` and :func:`ringreduce.simulate.simulate`.
        """
        network = self.network(world, nbytes, ranks_per_host)
        network = change(network) if change else network
        outcome = simulate(algorithm, nbytes, network, collective, **options)
        # Several hosts with several ranks each were not measured, so there is no correction for them.
        one_host = network.topology.ranks_per_host == world
        costs = self.inside if one_host else self.between if network.topology.ranks_per_host == 1 else None
        if costs is not None and costs.busy:
            busy = float(np.interp(math.log(max(nbytes, 1)), np.log(costs.sizes), costs.busy))
            outcome = replace(outcome, busy_cores=[busy] * len(outcome.busy_cores))
        if costs is None or collective != "all_reduce" or schedules.custom(outcome.algorithm, collective):
            return outcome
        seconds = outcome.seconds * costs.correction(outcome.algorithm, world, nbytes)
        unexplained = {"unexplained": seconds - outcome.seconds}
        return replace(outcome, seconds=seconds, made_of={**outcome.made_of, **unexplained})

    def ranking(
        self, nbytes: int, world: int, collective: str = "all_reduce", ranks_per_host: int | None = None
    ) -> list[Outcome]:
        """Returns the predictions for all algorithms of a collective, the fastest first."""
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
