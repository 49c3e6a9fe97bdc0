"""The command ``ringreduce simulate``."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict

from ringreduce import schedules
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.studies.model import Model
from ringreduce.studies.simulate import Network, Outcome, chart, read_network, simulate
from ringreduce.text import byte_count, human_bytes, human_us, layout

INTERVALS = 20_000  # the most that a picture or a trace shows


def run(options: Namespace) -> int:
    network_for = networks(options)
    asked = options.algorithm
    if "all" in asked:
        asked = [entry.name for entry in schedules.algorithms(options.collective)]
    sizes = [0] if options.collective == "barrier" else [byte_count(text) for text in options.bytes]
    if not asked or not sizes:
        raise ValueError("--algorithm and --bytes each need at least one value; separate several with commas")
    for name in filter(is_in_a_file, asked):
        schedules.load(name, options.collective)
    pictured = options.picture is not None or options.trace is not None
    if pictured and len(asked) * len(sizes) > 1:
        raise ValueError("--picture and --trace show a single simulation: give one algorithm and one size")
    outcomes = [
        simulate(
            name, nbytes, network_for(nbytes), options.collective, root=options.root, seed=options.seed,
            intervals=INTERVALS if pictured else 0,
        )
        for nbytes in sizes
        for name in asked
    ]  # fmt: skip
    print(as_json(outcomes) if options.format == "json" else table(outcomes))
    for option, write, path in (
        ("picture", chart.picture, options.picture),
        ("trace", chart.trace, options.trace),
    ):
        if path is None:
            continue
        try:
            print(f"{option.title()}: {write(outcomes[0], path)}")
        except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the file's format
            raise ValueError(f"--{option} {path}: {error}") from error
    return 0


def networks(options: Namespace) -> Callable[[int], Network]:
    """Returns a function from buffer size to network: that of a TOML file, or the machine of a cost model."""
    if options.network.suffix == ".json":
        model = Model.load(options.network)
        world = model.cores if options.world is None else options.world
        return lambda nbytes: model.network(world, nbytes)
    network = read_network(options.network)
    if options.world is not None:
        network = network.for_world(options.world)
    return lambda nbytes: network


def table(outcomes: list[Outcome]) -> str:
    """Returns a table with a line for each simulation, the fastest of each size first."""
    rows = [["size", "algorithm", "time, us", "busbw, GB/s", "rounds", "slices", "most of the time"]]
    for one in sorted(outcomes, key=lambda outcome: (outcome.nbytes, outcome.seconds)):
        figures = [human_us(1e6 * one.seconds), f"{one.busbw / 1e9:.2f}", str(one.rounds), str(one.slices)]
        rows.append([human_bytes(one.nbytes), one.algorithm, *figures, one.bottleneck])
    one = outcomes[0]
    title = f"{one.collective}, {one.world} ranks, simulated"
    return "\n".join([title, *layout(rows)])


def as_json(outcomes: list[Outcome]) -> str:
    kept = [{**asdict(one), "busbw": one.busbw, "bottleneck": one.bottleneck} for one in outcomes]
    for one in kept:
        del one["intervals"], one["link_names"]
    return json.dumps(kept, indent=1)
