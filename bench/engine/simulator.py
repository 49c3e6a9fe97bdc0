"""Measures the simulator's time and memory for 4,096 ranks, with every all-reduce on four kinds of networks.

    python3 -m bench.engine.simulator
    python3 -m bench.engine.simulator --networks fat_tree --algorithms one_shot,two_shot --bytes 16M

Each simulation has its own process. Times are seconds of a core, and include building the network.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from argparse import ArgumentParser

from ringreduce import schedules
from ringreduce.simulate import Costs, FatTree, Flat, MessageCosts, Network, Sites, Torus, simulate
from ringreduce.text import byte_count, layout, names

RATE = "100 Gbit/s"
NETWORKS = {
    "flat": Flat(hosts=4096, rate=RATE),
    "fat_tree": FatTree(hosts=512, ranks_per_host=8, hosts_per_leaf=32, oversubscription=2, rate=RATE),
    "torus": Torus(dims=[16, 16, 16], rate=RATE),
    "sites": Sites(hosts=[2048, 2048], rate=RATE, trunk="400 Gbit/s"),
}
COSTS = Costs(
    round_us=0.2,
    inside=MessageCosts(send_us=0.2, receive_us=0.2, send_rate="8 GB/s", combine_rate="8 GB/s"),
    between=MessageCosts(send_us=1, receive_us=1, send_rate="10 GB/s", combine_rate="8 GB/s"),
)


def measure(network: str, algorithm: str, nbytes: int) -> None:
    """Runs a simulation, and prints CPU seconds, MiB, and simulated ranks and slices. Needs a new process."""
    began = time.process_time()
    found = simulate(algorithm, nbytes, Network(topology=NETWORKS[network], costs=COSTS))
    taken = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slices = f"{found.simulated_slices} of {found.slices}"
    print(json.dumps([network, algorithm, f"{taken:.1f}", f"{peak:.0f}", str(found.simulated), slices]))


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=names, default=list(NETWORKS), help=",".join(NETWORKS))
    known = [entry.name for entry in schedules.algorithms("all_reduce")]
    parser.add_argument("--algorithms", type=names, default=known)
    parser.add_argument("--bytes", default="64M", help="size of the whole buffer (64M)")
    options = parser.parse_args()
    rows = [["network", "algorithm", "core, s", "memory, MiB", "ranks", "slices"]]
    for network in options.networks:
        for algorithm in options.algorithms:
            what = f"{network!r}, {algorithm!r}, {byte_count(options.bytes)}"
            call = f"from bench.engine.simulator import measure; measure({what})"
            done = subprocess.run([sys.executable, "-c", call], stdout=subprocess.PIPE, check=True)
            rows.append(json.loads(done.stdout))
    print("\n".join(layout(rows)))


if __name__ == "__main__":
    main()
