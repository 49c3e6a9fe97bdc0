"""A cluster: its network, its devices, and how long collectives take on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from ringreduce.settings import Table, first_problem, load
from ringreduce.studies.model import Model
from ringreduce.studies.plan.failures import Failures
from ringreduce.studies.simulate import Network, Outcome, simulate
from ringreduce.studies.simulate.rates import Bytes
from ringreduce.studies.simulate.topologies import FatTree

__all__ = ["Change", "Cluster", "Device", "Exchange", "read_cluster"]

Change = Callable[[Network], Network]


class Device(Table):
    """What a rank computes on. In files it is the table ``[device]``.

    Attributes:
        kind: "gpu" if communication leaves it alone, or "cpu" if collectives and computation share the host's cores.
        memory: The memory of a rank, such as "80 GB". None means any amount.
        speed: How many times faster it computes than the device of the job's times.
        price_per_hour: The price of one rank for an hour, in any currency.
    """

    kind: Literal["gpu", "cpu"] = "gpu"
    memory: Bytes | None = Field(default=None, gt=0)
    speed: PositiveFloat = 1.0
    price_per_hour: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class Exchange:
    """A simulated collective.

    Attributes:
        outcome: The result of the simulation.
        sent: The bytes that leave the busiest host through one of its links.
    """

    outcome: Outcome
    sent: float


class _Fitted(Table):
    """A cluster's costs by a model that ``ringreduce fit`` made."""

    model: Path
    ranks_per_host: PositiveInt


class Cluster:
    """A network or a fitted model, and the devices of its ranks.

    Args:
        costs: A described network, or a model of measured costs.
        device: The device of each rank.
        ranks_per_host: The ranks of a host. It is needed with a model; a network has its own.
        failures: How often hosts fail, if that is known.
    """

    def __init__(
        self, costs: Network | Model, device: Device | None = None, ranks_per_host: int | None = None,
        failures: Failures | None = None,
    ) -> None:  # fmt: skip
        self._costs = costs
        self.device, self.failures = device or Device(), failures
        self.ranks_per_host = (
            costs.topology.ranks_per_host if isinstance(costs, Network) else ranks_per_host or costs.cores
        )

    @property
    def world(self) -> int:
        """The number of ranks. With a model, that of one host."""
        if isinstance(self._costs, Model):
            return self.ranks_per_host
        return len(self._costs.build()[0]["node_of"])

    @property
    def cores_of_a_rank(self) -> float:
        """The cores of a host for each of its ranks. At least one, unless the description says otherwise."""
        cores = self._costs.cores if isinstance(self._costs, Model) else self._costs.costs.cores
        return (cores or self.ranks_per_host) / self.ranks_per_host

    def faster(self, times: float) -> Cluster:
        """Returns the same cluster with faster devices."""
        device = self.device.model_copy(update={"speed": times * self.device.speed})
        return Cluster(self._costs, device, self.ranks_per_host, self.failures)

    def exchange(self, collective: str, nbytes: int, world: int, change: Change | None = None) -> Exchange:
        """Simulates a collective of all ranks with the algorithm that ``auto`` picks.

        Args:
            collective: The collective.
            nbytes: The size of the whole buffer, in bytes.
            world: The number of ranks, which fill one host after the other.
            change: Returns the network to use in place of the cluster's own.

        Raises:
            ValueError: The cluster has no such number of ranks.
        """
        if isinstance(self._costs, Model):
            each = min(world, self.ranks_per_host)
            network = self._costs.network(world, nbytes, each)
            outcome = self._costs.predict("auto", nbytes, world, collective, each, change=change)
        else:
            network = self._costs if world == self.world else _of_size(self._costs, world)
            outcome = simulate("auto", nbytes, change(network) if change else network, collective)
        return Exchange(outcome, _sent(outcome, change(network) if change else network))


def _sent(outcome: Outcome, network: Network) -> float:
    """Returns the bytes that the busiest link from a host carries."""
    built, names = network.build()
    hosts = set(built["node_of"])
    rates = {name: link[2] for name, link in zip(names, built["links"], strict=True) if link[0] in hosts}
    carried = (share * outcome.seconds * rates[name] for name, share in outcome.busy.items() if name in rates)
    return max((nbytes for nbytes in carried if math.isfinite(nbytes)), default=0.0)


def _of_size(network: Network, world: int) -> Network:
    """Returns the network with another number of ranks: as many hosts as they fill, or a part of one host."""
    topology, hosts = network.topology, -(-world // network.topology.ranks_per_host)
    change: dict[str, Any] = {"ranks_per_host": min(world, topology.ranks_per_host)}
    if isinstance(topology, FatTree):
        change["hosts_per_leaf"] = math.gcd(topology.hosts_per_leaf, hosts)
    return network.model_copy(update={"topology": topology.model_copy(update=change).for_world(world)})


def read_cluster(path: Path) -> Cluster:
    """Reads a cluster from a TOML or JSON file: a network file with tables ``[device]`` and ``[failures]``.

    ``model`` and ``ranks_per_host`` may take the place of the network.

    Raises:
        ValueError: The file cannot be read, or something in it is wrong. The message is one line that names the file
            and the place in it.
    """
    table = load(path)
    own = {name: table.pop(name) for name in ("device", "failures") if name in table}
    try:
        extra = _Extra.model_validate(own)
        if "model" in table:
            fitted = _Fitted.model_validate(table)
            return Cluster(
                Model.load(path.parent / fitted.model), extra.device, fitted.ranks_per_host, extra.failures
            )
        network = Network.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from error
    try:
        network.build()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Cluster(network, extra.device, failures=extra.failures)


class _Extra(Table):
    device: Device = Device()
    failures: Failures | None = None
