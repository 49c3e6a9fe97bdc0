"""Compares the simulator with published figures: Swing and other algorithms on tori, with the paper's parameters.

    python3 -m bench.engine.published                  # figure 11a: 8x8
    python3 -m bench.engine.published --figure 6       # 64x64; takes minutes
    python3 -m bench.engine.published --figure 6 --sizes 32,2M,512M

The paper is De Sensi, Bonato, Saam and Hoefler, "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024,
arXiv:2401.09356. According to its section 5, links have 400 Gbit/s and a latency of 100 ns, and each hop processes a
packet in 300 ns. The authors simulated packets with SST. The points below were read from the vector graphics of the
paper's PDF: run times up to 32 KiB from the small plots, and goodputs above from the large ones. They are accurate to
about 1 per cent of the plot's height.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.engine.torus import Algorithm, buckets, doubling, exchanges, hamiltonian_rings, swing
from ringreduce.simulate import Costs, MessageCosts, Network, Torus, simulate
from ringreduce.text import byte_count, human_bytes, layout, names

RATE = "400 Gbit/s"
# A path of h hops between routers crosses h + 2 links of 100 ns (the first and the last join a node to its router) and
# h + 1 routers of 300 ns.
HOP_US, ENDS_US = 0.4, 0.5
SIZES = [32 * 4**step for step in range(13)]  # 32 B to 512 MiB
SMALL = 6  # the number of these sizes in the small plots


class Figure(NamedTuple):
    """Microseconds for the small sizes and Gbit/s for the others, by the paper's names of the algorithms."""

    dims: list[int]
    us: Mapping[str, list[float]]
    gbits: Mapping[str, list[float]]


FIGURES = {
    "6": Figure(
        [64, 64],
        {
            "Swing": [40.0, 40.0, 40.0, 40.0, 40.2, 42.7],
            "recursive doubling": [57.1, 57.1, 57.1, 57.1, 59.0, 78.2],
            "mirrored doubling": [57.1, 57.1, 57.1, 57.1, 57.3, 59.8],
            "bucket": [231.0] * 6,
        },
        {
            "Swing": [14.3, 48.3, 161.9, 386.7, 584.2, 627.6, 621.0],
            "recursive doubling": [8.8, 30.3, 73.2, 101.5, 94.8, 103.8, 116.0],
            "mirrored doubling": [9.8, 34.6, 118.6, 299.1, 416.2, 455.5, 461.5],
            "bucket": [4.5, 18.2, 66.8, 214.3, 477.4, 679.7, 763.0],
        },
    ),
    "11a": Figure(
        [8, 8],
        {
            "Swing": [7.1, 7.1, 7.1, 7.1, 7.2, 8.5],
            "recursive doubling": [8.7, 8.7, 8.7, 8.7, 9.7, 13.2],
            "bucket": [25.7] * 6,
            "rings": [120.0],  # an annotation in the plot
        },
        {
            "Swing": [76.6, 203.8, 448.9, 640.6, 713.7, 734.8, 740.2],
            "recursive doubling": [46.9, 101.9, 144.5, 155.6, 160.9, 158.7, 157.6],
            "bucket": [40.9, 137.8, 354.6, 596.2, 718.6, 757.5, 767.9],
            "rings": [9.2, 36.5, 123.7, 339.3, 601.5, 745.6, 793.1],
        },
    ),
}


def variants(name: str, dims: list[int]) -> list[Algorithm]:
    """Returns the variants of an algorithm. The paper shows the better one."""
    if name == "bucket":
        return [buckets(dims)]
    if name == "rings":
        return [hamiltonian_rings(dims)]
    partner = swing if name == "Swing" else doubling
    ports = 1 if name == "recursive doubling" else 2 * len(dims)
    return [exchanges(dims, partner, ports, halving) for halving in (False, True)]


def published(figure: Figure, name: str) -> dict[int, float]:
    """Returns the published seconds by size."""
    found = {nbytes: 1e-6 * us for nbytes, us in zip(SIZES, figure.us[name], strict=False)}
    large = zip(SIZES[SMALL:], figure.gbits[name], strict=True)
    return found | {nbytes: 8 * nbytes / (1e9 * gbits) for nbytes, gbits in large}


def simulated(name: str, dims: list[int], nbytes: int) -> float:
    """Returns the simulated seconds, without cutting messages into slices."""
    costs = Costs(between=MessageCosts(latency_us=ENDS_US))
    network = Network(topology=Torus(dims=dims, rate=RATE, latency_us=HOP_US), costs=costs)
    # prove=False, because the order of summation of Swing with whole buffers differs from rank to rank.
    found = (
        simulate(each, nbytes, network, slice_bytes=1 << 60, prove=False).seconds
        for each in variants(name, dims)
    )
    return min(found)


def compared(figure: Figure, sizes: list[int]) -> Iterator[tuple[str, int, float, float]]:
    """Yields the algorithm, the size, and the published and the simulated seconds."""
    for name in figure.us:
        points = published(figure, name)
        for nbytes in sizes:
            if nbytes in points:
                yield name, nbytes, points[nbytes], simulated(name, figure.dims, nbytes)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", choices=list(FIGURES), default="11a")
    parser.add_argument("--sizes", type=names, help="some of the sizes in the figure")
    options = parser.parse_args()
    sizes = [byte_count(text) for text in options.sizes] if options.sizes else SIZES
    rows = [
        [
            "algorithm",
            "size",
            "published, us",
            "simulated, us",
            "difference, %",
            "published, Gbit/s",
            "simulated",
        ]
    ]
    differences = []
    for name, nbytes, there, here in compared(FIGURES[options.figure], sizes):
        differences.append(abs(here / there - 1))
        rates = [f"{8e-9 * nbytes / seconds:.1f}" for seconds in (there, here)]
        times = [f"{1e6 * seconds:.1f}" for seconds in (there, here)]
        rows.append([name, human_bytes(nbytes), *times, f"{100 * (here / there - 1):+.1f}", *rates])
    print("\n".join(layout(rows)))
    near = sum(difference <= 0.15 for difference in differences)
    print(f"{near} of {len(differences)} points are within 15 per cent")


if __name__ == "__main__":
    main()
