"""Writes the report of a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringreduce.studies import pages
from ringreduce.studies.pages.looks import color, symbol
from ringreduce.studies.plan.cluster import Cluster
from ringreduce.studies.plan.failures import goodput
from ringreduce.studies.plan.job import Job
from ringreduce.studies.plan.prediction import Prediction, Simulations, sensitivity
from ringreduce.studies.plan.scaling import Named, best, front, scaling, worlds
from ringreduce.studies.plan.search import Search
from ringreduce.studies.plan.strategies import Strategy

__all__ = ["write"]

SHOWN = 4000  # operations of a step; more are in the trace


@dataclass(frozen=True)
class _Report:
    job: Job
    cluster: Cluster
    found: list[Named]
    best: Named
    gains: Mapping[str, Mapping[str, float]]

    def json(self, search: Search | None) -> str:
        """Returns everything that the page's script needs, as JSON."""
        names = list(dict.fromkeys(text for text, _ in self.found))
        looks = [
            {"name": name, "color": color(number), "symbol": symbol(number)}
            for number, name in enumerate(names)
        ]
        tried = list(search.fitting) if search else []
        clouds = {"strategies": self.found, "tried": tried}
        return json.dumps(
            {
                "unit": self.job.unit, "limit": self.cluster.device.memory, "names": looks,
                "points": [_point(names.index(text), one) for text, one in self.found],
                "tried": [{**_point(0, one), "text": text} for text, one in tried],
                "fronts": {
                    name: {
                        "memory": _by_world(cloud),
                        "price": front(cloud, lambda one: one.price),
                    }
                    for name, cloud in clouds.items()
                },
                "gains": self.gains, "weeks": self._weeks(),
                "step": {"text": self.best[0], "world": self.best[1].world, "rows": _timeline(self.best[1])},
            },
            allow_nan=False,
        )  # fmt: skip

    def _weeks(self) -> list[dict[str, Any]]:
        failures = self.cluster.failures
        if failures is None:
            return []
        asked = sorted({one.world for _, one in self.found})
        hosts = {world: -(-world // self.cluster.ranks_per_host) for world in asked}
        return [{"world": world, **asdict(goodput(hosts[world], failures))} for world in asked]


def _by_world(cloud: Sequence[Named]) -> list[int]:
    """Returns the places on the front of rate against memory, separately for each number of ranks."""
    kept: list[int] = []
    for world in sorted({one.world for _, one in cloud}):
        places = [place for place, (_, one) in enumerate(cloud) if one.world == world]
        own = [cloud[place] for place in places]
        kept += [places[each] for each in front(own, lambda one: one.memory.total)]
    return kept


def _point(number: int, one: Prediction) -> dict[str, Any]:
    return {
        "strategy": number, "world": one.world, "seconds": one.seconds, "rate": one.rate, "exposed": one.exposed,
        "efficiency": one.efficiency, "memory": asdict(one.memory), "total": one.memory.total, "fits": one.fits,
        "link_bytes": one.link_bytes, "price": one.price, "bound": one.bound, "causes": dict(one.causes),
    }  # fmt: skip


def _timeline(one: Prediction) -> list[list[Any]]:
    """Returns the stream, the kind, the name and the times of each operation of a step."""
    if len(one.timeline) > SHOWN:
        return []
    return [
        [each.operation.stream, each.operation.kind, f"{each.operation.collective} {each.operation.name}".strip(),
         each.began, each.ended]
        for each in one.timeline
        if each.ended > each.began
    ]  # fmt: skip


def write(
    path: Path | str, job: Job, cluster: Cluster, chosen: Mapping[str, Strategy], asked: Sequence[int],
    simulations: Simulations | None = None, search: Search | None = None,
) -> None:  # fmt: skip
    """Writes the report of a plan.

    Args:
        path: The HTML file. Its folder is created if necessary.
        job, cluster: What is planned.
        chosen: The strategies, by the text that names them.
        asked: Numbers of ranks. The report shows these, and those from one to the largest of them.
        simulations: The collectives simulated so far.
        search: The result of a search, whose predictions are shown beside.

    Raises:
        ValueError: No strategy fits, or the file cannot be written.
    """
    largest = max(asked)
    every = sorted({*worlds(cluster, largest), *asked})
    found, impossible = scaling(job, cluster, chosen, every, simulations or Simulations(cluster))
    winner = best(found)
    if winner is None:
        raise ValueError("no strategy fits in the memory of a rank on any number of ranks")
    gains = {
        text: sensitivity(job, cluster, one.strategy, one.world)
        for text, one in found
        if one.world == winner[1].world and one.fits
    }
    report = _Report(job, cluster, found, winner, gains)
    shown = sorted({one.world for _, one in found})
    pages.write(
        path, __package__, report.json(search), job=job, device=cluster.device, failures=cluster.failures,
        worlds=shown, winner=winner, impossible=impossible, search=search, priced=cluster.device.price_per_hour > 0,
    )  # fmt: skip
