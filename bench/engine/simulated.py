"""Compares the simulator with measurements on the network that it describes: four hosts of hosts.py, all all-reduces.

    python3 -m bench.engine.simulated                       # 1 Gbit/s, no delay
    python3 -m bench.engine.simulated --delay-ms 5          # a round trip of 10 ms
    python3 -m bench.engine.simulated --from bench/results/simulated.json

Nothing is fitted to the measurements that are compared. The simulated network has the configured rate, without the
share of the frames' headers, and the configured delay. The other costs of a message come from messages between two of
the hosts, which are timed separately. Half of these costs is assigned to the sender and the receiver, and half to the
latency.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bench.network.rendezvous import Rendezvous

ROOT = Path(__file__).resolve().parents[2]
SIZES = "8,1K,16K,64K,128K,256K,1M,4M,16M,64M"
MESSAGE = 8  # bytes
PAYLOAD = 1448 / 1514  # the share of the payload in a frame
LARGE = 64 << 10  # the goal is about the errors above this size


def rank(options: Namespace) -> None:
    """Runs one of the ranks. The first one prints a line for each figure."""
    import ringreduce
    from ringreduce.bench.ours import ours
    from ringreduce.bench.protocol import Buffers, Effort, Problem, measure
    from ringreduce.text import byte_count

    # The hosts are on one machine, so ringreduce would otherwise use shared memory.
    os.environ["RINGREDUCE_HOST"] = platform.node()
    meeting = Rendezvous(options.rank, options.hosts, Path(options.folder))

    def say(**line: Any) -> None:
        if options.rank == 0:
            print(json.dumps(line), flush=True)

    with ringreduce.init(options.rank, options.hosts, meeting.exchange, timeout=60, transport="tcp") as comm:
        say(message=MESSAGE, us=1e6 * one_way(comm, meeting, MESSAGE))
        for nbytes in map(byte_count, options.sizes):
            problem = Problem("all_reduce", nbytes)
            buffers = None
            for name in options.algorithms:
                library = ours(comm, name)
                library.barrier, library.maximum = meeting.barrier, meeting.maximum
                buffers = buffers or Buffers(library, problem)
                effort = Effort(options.budget, warmup=2 if nbytes < 4 << 20 else 1, least=3, check=False)
                found = measure(library, buffers, effort)
                say(algorithm=name, nbytes=nbytes, us=found["median_us"])
        meeting.barrier()


def one_way(comm: Any, meeting: Rendezvous, nbytes: int) -> float:
    """Returns the seconds from a send to the end of its receive, between the first two ranks."""
    import numpy as np

    array, times = np.zeros(nbytes, np.uint8), []
    for _ in range(30):
        meeting.barrier()
        began = time.perf_counter()
        if comm.rank < 2:
            for step in range(2):
                comm.send(array, 1 - comm.rank) if comm.rank == step else comm.recv(array, 1 - comm.rank)
        times.append((time.perf_counter() - began) / 2)
    return statistics.median(times)


def measured(options: Namespace) -> dict[str, Any]:
    from bench.network.hosts import Hosts

    if reason := Hosts.permitted(delay_ms=options.delay_ms):
        raise SystemExit(reason)
    with (
        Hosts(options.hosts, options.rate, options.delay_ms) as hosts,
        tempfile.TemporaryDirectory() as folder,
    ):
        command = [sys.executable, "-m", "bench.engine.simulated", *sys.argv[1:], "--folder", folder]
        ranks = [
            host.popen([*command, "--rank", str(number)], stdout=subprocess.PIPE, text=True)
            for number, host in enumerate(hosts)
        ]
        lines = [json.loads(line) for line in ranks[0].stdout]
        if any(each.wait() for each in ranks):
            raise SystemExit("a rank has failed")
    return {"hosts": options.hosts, "rate": options.rate, "delay_ms": options.delay_ms, "lines": lines}


def simulated(found: dict[str, Any]) -> dict[tuple[str, int], float]:
    """Returns the simulated microseconds by algorithm and size."""
    from bench.network.links import bits_per_second
    from ringreduce.simulate import Costs, Flat, MessageCosts, Network, simulate

    delay_us = 1000 * found["delay_ms"]
    message, *lines = found["lines"]
    own_us = max(message["us"] - delay_us, 0.0)
    costs = MessageCosts(send_us=own_us / 4, receive_us=own_us / 4, latency_us=own_us / 2)
    rate = bits_per_second(found["rate"]) / 8 * PAYLOAD
    topology = Flat(hosts=found["hosts"], rate=rate, latency_us=delay_us / 2)  # for each of two links
    network = Network(topology=topology, costs=Costs(between=costs))
    return {
        (line["algorithm"], line["nbytes"]): 1e6
        * simulate(line["algorithm"], line["nbytes"], network).seconds
        for line in lines
    }


def table(found: dict[str, Any], times: dict[tuple[str, int], float]) -> str:
    """Returns a table of the measured milliseconds and the errors of the simulated ones."""
    from ringreduce.text import human_bytes, layout

    measured = {(line["algorithm"], line["nbytes"]): line["us"] for line in found["lines"][1:]}
    sizes = sorted({nbytes for _, nbytes in measured})
    rows = [["", *map(human_bytes, sizes)]]
    for name in dict.fromkeys(name for name, _ in measured):
        cells = [(measured[name, nbytes], times[name, nbytes]) for nbytes in sizes]
        rows.append([name, *(f"{there / 1000:.1f} {100 * (here / there - 1):+.0f}" for there, here in cells)])
    errors = [abs(times[key] / us - 1) for key, us in measured.items() if key[1] > LARGE]
    title = f"{found['hosts']} hosts, {found['rate']}, {found['delay_ms']:g} ms one way: measured ms, error in per cent"
    last = f"above {human_bytes(LARGE)}: median error {100 * statistics.median(errors):.1f} per cent"
    return "\n".join([title, *layout(rows), last])


def parse_arguments() -> Namespace:
    from ringreduce import schedules
    from ringreduce.text import names

    parser = ArgumentParser(description=__doc__.splitlines()[0])
    known = [entry.name for entry in schedules.algorithms("all_reduce")]
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="rate of a host's link in tc's notation (1gbit)")
    parser.add_argument("--delay-ms", type=float, default=0, help="delay from one host to another (0)")
    parser.add_argument("--sizes", type=names, default=names(SIZES), help=SIZES)
    parser.add_argument("--algorithms", type=names, default=known)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds for each figure")
    parser.add_argument("--save", type=Path, help="file for the measurements, as JSON")
    parser.add_argument(
        "--from", type=Path, dest="kept", help="file with saved measurements, instead of measuring"
    )
    parser.add_argument("--rank", type=int, help="rank of a process that measures")
    parser.add_argument("--folder", help="folder in which the ranks meet")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.rank is not None:
        return rank(options)
    found = json.loads(options.kept.read_text()) if options.kept else measured(options)
    if options.save:
        options.save.write_text(json.dumps(found, indent=1))
    print(table(found, simulated(found)))


if __name__ == "__main__":
    main()
