"""Measures how well a fitted cost model predicts all-reduces of sizes and worlds that it was not fitted to.

Usage: python3 -m bench.engine.model [--launches 3]            shared memory: fitted to 2, 3, 6, compared on 2, 4, 8
       python3 -m bench.engine.model --tcp [--round-trip MS]   four hosts at 1 Gbit/s: fitted to 2 and 3 of them

The points to fit and the points to compare are measured in turn, until there are enough launches of each in one mode of
the machine (near or far). Launches in which the mode changes are left out. A figure is the median over launches. The
last table shows how well one half of the launches predicts the other: no model can do better. The hosts are network
namespaces of this machine (see hosts.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import ringreduce
from bench.network.hosts import Hosts
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.communicator import Communicator
from ringreduce.model import Model
from ringreduce.model.fitting import SIZES, Point, fit_costs, measure_points, on_cores_of_their_own
from ringreduce.model.model import of_their_own
from ringreduce.text import human_bytes, layout

K, M = 1 << 10, 1 << 20
COMPARED = (8, 64, 512, 4 * K, 16 * K, *(K << n for n in range(5, 17)))
ALGORITHMS = of_their_own("all_reduce")
BUDGET = 0.01  # seconds for each measurement in each launch
PORT = 29501
CLOSE = 0.1  # a predicted winner counts as right if it takes at most this much longer than the true one

Measured = dict[str, list[Point]]
"""The points by purpose: "fitted" or "compared"."""


def in_shared_memory(launches: int) -> tuple[str, list[Measured]]:
    """Returns the mode, and the measurements in it: fewer launches than asked for if the mode changes too often."""
    turns = [("fitted", 2), ("compared", 2), ("fitted", 3), ("compared", 4), ("fitted", 6), ("compared", 8)]
    found = defaultdict[Any, list[list[Point]]](list)
    for _ in range(4 * launches):
        for what, world in turns:
            sizes = SIZES["inside"] if what == "fitted" else COMPARED
            before = _engine.probe_exchange()
            points = ringreduce.run(_on_cores, world, sizes)[0]
            found[mode_of(before, _engine.probe_exchange()), what, world].append(points)
        whole = {
            mode: min(len(found[(mode, *turn)]) for turn in turns) for mode in ("near", "far", "unknown")
        }
        mode = max(whole, key=whole.__getitem__)
        print(", ".join(f"{name}: {count} launches" for name, count in whole.items()), file=sys.stderr)
        if whole[mode] >= launches:
            break
    if not whole[mode]:
        raise SystemExit("the machine changes its mode too often; try again later")
    return mode, [{what: points} for what, world in turns for points in found[mode, what, world]]


def _on_cores(comm: Communicator, sizes: Sequence[int]) -> list[Point]:
    with on_cores_of_their_own(comm):
        return measure_points(comm, ALGORITHMS, sizes, BUDGET, 1)


def between_hosts(round_trip: float) -> Measured:
    with Hosts(4, "1gbit", round_trip / 2) as hosts:
        place = f"tcp://{hosts[0].address}:{PORT}"
        environment = {**os.environ, "RINGREDUCE_SECRET": secrets.token_hex(16)}
        ranks = [
            host.popen(
                [sys.executable, "-m", "bench.engine.model", "--rank", str(rank), "--place", place],
                stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        said = [rank.communicate(timeout=3000)[0] for rank in ranks]
    return {what: [Point(*point) for point in points] for what, points in json.loads(said[0]).items()}


def host_rank(rank: int, place: str) -> None:
    # The hosts are on one machine, so ringreduce would otherwise use shared memory.
    os.environ["RINGREDUCE_HOST"] = platform.node()
    with ringreduce.init(rank, 4, place, transport="tcp") as comm:
        found: Measured = {"fitted": [], "compared": []}
        for what, world in (("fitted", 2), ("compared", 4), ("fitted", 3)):
            group = comm.split(0 if rank < world else None)
            if group is not None:
                sizes = SIZES["between"] if what == "fitted" else COMPARED
                with group:
                    found[what] += measure_points(group, ALGORITHMS, sizes, BUDGET, 1)
            comm.barrier()
    if rank == 0:
        print(json.dumps(found))


def medians(launches: Iterable[Measured], what: str) -> list[Point]:
    times = defaultdict[tuple[str, int, int], list[float]](list)
    for launch in launches:
        for name, world, nbytes, seconds in launch.get(what, []):
            times[name, world, nbytes].append(seconds)
    return [Point(*key, float(np.median(each))) for key, each in times.items()]


def halves(launches: Iterable[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Splits the launches of each world into the odd ones and the even ones."""
    found: tuple[list[Measured], list[Measured]] = [], []
    seen = Counter[tuple[str, frozenset[int]]]()
    for launch in launches:
        for what, points in launch.items():
            key = what, frozenset(point.world for point in points)
            found[seen[key] % 2].append({what: points})
            seen[key] += 1
    return found


def report(points: Sequence[Point], predicted: Callable[[Point], float]) -> str:
    """Returns a table of the errors by size and world, and how much slower the predicted winner is than the best."""
    errors, cells = defaultdict[Any, list[float]](list), defaultdict[Any, list[tuple[float, float]]](list)
    for point in points:
        seconds = predicted(point)
        for key in ((point.nbytes, point.world), (0, point.world), (0, 0)):
            errors[key].append(abs(seconds / point.seconds - 1))
        cells[point.nbytes, point.world].append((seconds, point.seconds))
    late = {cell: min(each)[1] / min(seconds for _, seconds in each) - 1 for cell, each in cells.items()}
    worlds = sorted({point.world for point in points})
    rows = [["size", *(f"{world} ranks: error, winner" for world in worlds)]]
    for size in sorted({point.nbytes for point in points}):
        known = [(size, world) for world in worlds if (size, world) in cells]
        rows.append([human_bytes(size), *(f"{np.median(errors[at]):5.0%}  +{late[at]:.0%}" for at in known)])
    rows.append(["all", *(f"{np.median(errors[0, world]):5.0%}" for world in worlds)])
    right = np.mean([value <= CLOSE for value in late.values()])
    high = np.quantile(errors[0, 0], 0.9)
    summary = f"median error {np.median(errors[0, 0]):.1%}, nine of ten within {high:.0%}; winner right in {right:.0%}"
    return "\n".join([*layout(rows), summary])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--round-trip", type=float, default=0, metavar="MS")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return host_rank(options.rank, options.place)
    if options.tcp:
        before = _engine.probe_exchange()
        launches = [between_hosts(options.round_trip) for _ in range(options.launches)]
        mode = mode_of(before, _engine.probe_exchange())
    else:
        mode, launches = in_shared_memory(options.launches)
    fitted, compared = medians(launches, "fitted"), medians(launches, "compared")
    place = "between" if options.tcp else "inside"
    costs = fit_costs(fitted, _engine.usable_cores(), place)
    model = Model(made={}, cores=_engine.usable_cores(), **{place: costs})
    plain = model.model_copy(update={place: costs.model_copy(update={"corrections": {}})})
    print(f"Mode: {mode}")
    for title, one in (("With corrections", model), ("Costs alone", plain)):
        print(f"\n{title}\n" + report(compared, lambda p, one=one: one.predict(*_key(p)).seconds))  # type: ignore[misc]
    one_half, other = (medians(half, "compared") for half in halves(launches))
    if other:
        known = {_key(point): point.seconds for point in other}
        pairs = [point for point in one_half if _key(point) in known]
        print("\nOne half of the launches from the other\n" + report(pairs, lambda p: known[_key(p)]))


def _key(point: Point) -> tuple[str, int, int]:
    return point.algorithm, point.nbytes, point.world


if __name__ == "__main__":
    main()
