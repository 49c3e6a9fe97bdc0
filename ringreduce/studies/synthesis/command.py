"""The command ``ringreduce synthesise``."""

from __future__ import annotations

from argparse import Namespace

from ringreduce.studies.simulate import read_network
from ringreduce.studies.synthesis import Synthesis, synthesise
from ringreduce.text import byte_count, human_bytes, human_us, layout


def run(options: Namespace) -> int:
    network = read_network(options.network)
    if options.world is not None:
        network = network.for_world(options.world)
    sizes = [byte_count(text) for text in options.bytes]
    made = synthesise(network)
    print(title(made))
    if made.forests:
        print(table(made, sizes))
    return 0


def title(made: Synthesis) -> str:
    if not made.forests:
        return f"all_reduce, {made.world} ranks: nothing is synthesised for one host, or for more than 256"
    rates = ", ".join(f"{len(each.trees)} ({100 * each.rate / made.bound:.0f} %)" for each in made.forests)
    return (
        f"all_reduce, {made.world} ranks, along trees: at most {made.bound / 1e6:.4g} MB/s of the buffer\n"
        f"because of {', '.join(made.limits)}\n"
        f"Number of trees (share of that rate they reach): {rates}; made in {1e3 * made.seconds:.1f} ms"
    )


def table(made: Synthesis, sizes: list[int]) -> str:
    """Returns a table with a line for each size: the way predicted to be fastest, and the share of the bound."""
    rows = [["size", "algorithm", "trees", "slices", "predicted, us", "of the bound"]]
    for nbytes in sizes:
        way = made.way(nbytes)
        trees = str(len(made.forests[way.forest].trees)) if way.forest >= 0 else ""
        share = f"{100 * nbytes / made.bound / way.seconds:.0f} %"
        rows.append(
            [
                human_bytes(nbytes),
                way.algorithm,
                trees,
                human_bytes(way.slice_bytes),
                human_us(1e6 * way.seconds),
                share,
            ]
        )
    return "\n".join(layout(rows))
