"""A cluster: its network, its devices, and how long collectives take on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from ringreduce.settings import Table, first_problem, load
from ringreduce.studies.model import Model
from ringreduce.studies.plan.failures import Failures
from ringreduce.studies.plan.operations import Group
from ringreduce.studies.plan.variation import Variation
from ringreduce.studies.simulate import Network, Outcome, simulate
from ringreduce.studies.simulate.rates import Bytes, check_unit
from ringreduce.studies.simulate.topologies import FatTree, Flat

__all__ = ["Change", "Cluster", "Device", "Exchange", "read_cluster"]

Change = Callable[[Network], Network]


class Device(Table):
    """What a rank computes on. In files it is the table ``[device]``.

    Attributes:
        kind: "gpu" if communication leaves it alone, or "cpu" if collectives and computation share the host's cores.
        memory: The memory of a rank, such as "80 GB". None means any amount.
        speed: How many times faster it computes than the device of the job's times.
        price_per_hour: The price of one rank for an hour, in any currency.
        cores: The cores of a rank, if it is a CPU. None means those of its host, divided by the ranks there. Less than
            one if ranks take turns.
    """

    kind: Literal["gpu", "cpu"] = "gpu"
    memory: Bytes | None = Field(default=None, gt=0)
    speed: PositiveFloat = 1.0
    price_per_hour: NonNegativeFloat = 0.0
    cores: PositiveFloat | None = None


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
        variation: How the ranks' computing times differ. Without it, all are equal.
    """

    def __init__(
        self, costs: Network | Model, device: Device | None = None, ranks_per_host: int | None = None,
        failures: Failures | None = None, variation: Variation | None = None,
    ) -> None:  # fmt: skip
        self._costs = costs
        self.device, self.failures, self.variation = device or Device(), failures, variation
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
        if self.device.cores is not None:
            return self.device.cores
        cores = self._costs.cores if isinstance(self._costs, Model) else self._costs.costs.cores
        return (cores or self.ranks_per_host) / self.ranks_per_host

    def faster(self, times: float) -> Cluster:
        """Returns the same cluster with faster devices."""
        device = self.device.model_copy(update={"speed": times * self.device.speed})
        return Cluster(self._costs, device, self.ranks_per_host, self.failures, self.variation)

    def exchange(
        self, collective: str, nbytes: int, world: int, change: Change | None = None, group: Group | None = None,
        algorithm: str = "auto",
    ) -> Exchange:  # fmt: skip
        """Simulates a collective.

        Args:
            collective: The collective.
            nbytes: The size of the whole buffer, in bytes.
            world: The number of ranks, which fill one host after the other.
            change: Returns the network to use in place of the cluster's own.
            group: The ranks. None means all. Groups that use a host's link at the same time have equal parts of it.
            algorithm: The algorithm's name, "auto", or "coded": what ``auto`` picks for values in a wire format.

        Raises:
            ValueError: The cluster has no such number of ranks.
        """
        on_host = min(world, self.ranks_per_host)
        size, each, beside = _layout(group, world, on_host)
        change = _all_of(change, _narrower(beside) if beside > 1 else None)
        options: dict[str, Any] = {"coded": algorithm == "coded"}
        name = "auto" if algorithm == "coded" else algorithm
        if isinstance(self._costs, Model):
            network = self._costs.network(size, nbytes, each)
            outcome = self._costs.predict(name, nbytes, size, collective, each, change=change, **options)
            network = change(network) if change else network
        else:
            network = self._costs if size == self.world else _of_size(self._costs, size, each)
            network = change(network) if change else network
            outcome = simulate(name, nbytes, network, collective, **options)
        return Exchange(outcome, beside * _sent(outcome, network))


def _layout(group: Group | None, world: int, on_host: int) -> tuple[int, int, int]:
    """Returns the number of ranks of a group, how many of them are on a host, and how many groups share its link."""
    if group is None:
        return world, on_host, 1
    if group.size * group.stride <= on_host:
        return group.size, group.size, 1
    each = max(on_host // group.stride, 1)
    if group.size % each:
        raise ValueError(
            f"groups of {group.size} ranks do not fill hosts with {on_host} ranks in the same way"
        )
    return group.size, each, min(group.stride, on_host)


def _all_of(*changes: Change | None) -> Change | None:
    wanted = [change for change in changes if change]
    return (
        (lambda network: reduce(lambda so_far, change: change(so_far), wanted, network)) if wanted else None
    )


def _narrower(parts: int) -> Change:
    """Returns a change that leaves one of that many equal parts of each link."""

    def change(network: Network) -> Network:
        topology = network.topology
        if isinstance(topology.rate, list) or not isinstance(topology, FatTree | Flat):
            raise ValueError("groups of ranks need a flat network with one rate, or a fat tree")
        narrow = topology.model_copy(update={"rate": topology.rate / parts})
        return network.model_copy(update={"topology": narrow})

    return change


def _sent(outcome: Outcome, network: Network) -> float:
    """Returns the bytes that the busiest link from a host carries."""
    built, names = network.build()
    hosts = set(built["node_of"])
    rates = {name: link[2] for name, link in zip(names, built["links"], strict=True) if link[0] in hosts}
    carried = (share * outcome.seconds * rates[name] for name, share in outcome.busy.items() if name in rates)
    return max((nbytes for nbytes in carried if math.isfinite(nbytes)), default=0.0)


def _of_size(network: Network, world: int, each: int) -> Network:
    """Returns the network with another number of ranks, of which each host has so many."""
    topology, hosts = network.topology, -(-world // each)
    change: dict[str, Any] = {"ranks_per_host": each}
    if isinstance(topology, FatTree):
        change["hosts_per_leaf"] = math.gcd(topology.hosts_per_leaf, hosts)
    return network.model_copy(update={"topology": topology.model_copy(update=change).for_world(world)})


def read_cluster(path: Path) -> Cluster:
    """Reads a cluster from a TOML or JSON file: a network file with further tables.

    These are ``[device]``, ``[failures]`` and ``[variation]``, and each may be missing. ``model`` and
    ``ranks_per_host`` may take the place of the network.

    Raises:
        ValueError: The file cannot be read, or something in it is wrong. The message is one line that names the file
            and the place in it.
    """
    table = load(path)
    check_unit(path, table, "network", "rate")
    own = {name: table.pop(name) for name in ("device", "failures", "variation") if name in table}
    try:
        extra = _Extra.model_validate(own)
        if "model" in table:
            fitted = _Fitted.model_validate(table)
            return Cluster(
                Model.load(path.parent / fitted.model), extra.device, fitted.ranks_per_host, extra.failures,
                extra.variation,
            )  # fmt: skip
        network = Network.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}") from error
    try:
        network.build()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Cluster(network, extra.device, failures=extra.failures, variation=extra.variation)


class _Extra(Table):
    device: Device = Device()
    failures: Failures | None = None
    variation: Variation | None = None
