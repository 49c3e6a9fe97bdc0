"""Times collectives between hosts with this library, Gloo and MPIs, and compares them with a plain TCP connection.

    python3 -m bench.network.network --hosts 4 --rate 1gbit
    python3 -m bench.network.network --hosts 4 --delay-ms 5 --sizes 1K,64K,1M --contestants gloo,ringreduce
    python3 -m bench.network.network --loopback --sizes 1K,1M

The hosts are those of hosts.py. They share the cores of this machine, so a library that spins while it waits takes
cores from the other ranks. On separate hosts it would not. `make bench-peers` installs the MPIs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.network import raw_fabric
from bench.network.contestants import GUARDS, OURS, PEERS, Network, Place
from bench.network.hosts import Hosts
from bench.network.links import bits_per_second
from ringreduce.bench.facts import busy_share
from ringreduce.bench.programs import ABSENT, Contestant, Question, refusals, take_turns
from ringreduce.bench.report import report
from ringreduce.bench.results import Results, Row, merge
from ringreduce.simulate import Graph, GraphLink
from ringreduce.simulate import Network as SimulatedNetwork
from ringreduce.synthesis import synthesise
from ringreduce.text import byte_count, names

SIZES = "1K,8K,64K,256K,1M,4M,16M,64M"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
PING_PONG = "fi_pingpong"
RAW_SECONDS, RAW_SECONDS_LOSSY = 2.0, 10.0  # losses need a while to average out
SLOWEST = 6  # a contestant is stopped if it needs longer than this many times the floor
CALLS = 20  # calls of the largest size, including warm-up


class Loopback:
    """This machine as it is, in place of a host."""

    name, address, interface = "localhost", "127.0.0.1", "lo"

    def command(self, arguments: Sequence[str]) -> list[str]:
        return list(arguments)

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(list(arguments), **options)


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument(
        "--rate", default="1gbit", help="rate of the hosts' links in tc's notation; one, or one for each host"
    )
    parser.add_argument("--sites", type=names, help="site of each host, such as 0,1,0,1 (all at one site)")
    parser.add_argument("--trunk", default="500mbit", help="rate of the links between sites (500mbit)")
    parser.add_argument("--delay-ms", type=float, default=0, help="delay from one host to another (0)")
    parser.add_argument(
        "--one-lost-in",
        type=int,
        default=0,
        help="one frame in this many is lost on its way; needs a delay (0: none)",
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=1,
        help="the number of plain TCP connections that make the floor (1)",
    )
    parser.add_argument("--loopback", action="store_true", help="2 ranks on this machine itself")
    parser.add_argument("--sizes", type=names, default=names(SIZES), help=SIZES)
    parser.add_argument("--collectives", type=names, default=["all_reduce"], help=",".join(COLLECTIVES))
    known = [OURS, *PEERS]
    parser.add_argument("--contestants", type=names, default=known, help=",".join(known))
    parser.add_argument(
        "--algorithms",
        type=names,
        default=["auto"],
        help="our algorithms, with a column for each, such as auto,auto+int8 with quantised messages;"
        " off is auto without measured links",
    )
    parser.add_argument(
        "--guards",
        type=names,
        default=[""],
        help=f"our guards, with a column for each: {','.join(filter(None, GUARDS))}",
    )
    parser.add_argument(
        "--transport",
        type=transports,
        default=["tcp"],
        help="our transports, such as tcp,ofi, with a column for each (tcp); empty lets ringreduce choose",
    )
    parser.add_argument(
        "--reads",
        type=names,
        default=[""],
        help="whether our ofi reads remotely, 0 or 1, with a column for each (as RINGREDUCE_OFI_RMA chooses)",
    )
    parser.add_argument("--provider", default="tcp", help="libfabric's, for all that use it (tcp)")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per size")
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
    strangers = [name for name in options.contestants if name not in known]
    if strangers:
        parser.error(f"no contestant is called {', '.join(strangers)}")
    if options.loopback:
        options.hosts, options.ranks_per_host, options.rate, options.delay_ms = 2, 1, None, 0
        options.contestants = [name for name in options.contestants if name in (OURS, "gloo", "mpich-ofi")]
    return options


def transports(text: str) -> list[str]:
    return names(text) or [""]


@contextmanager
def places(options: Namespace) -> Iterator[Sequence[Place]]:
    if options.loopback:
        yield [Loopback()] * options.hosts
        return
    sites = [int(site) for site in options.sites] if options.sites else None
    where = (rates(options), options.delay_ms, sites, options.trunk, options.one_lost_in)
    with Hosts(options.hosts, *where) as hosts:
        yield hosts


def rates(options: Namespace) -> list[str]:
    """Returns the rate of each host's link."""
    named = names(options.rate)
    return named * options.hosts if len(named) == 1 else named


def bound(options: Namespace) -> float:
    """Returns the rate that no all-reduce along trees exceeds on these links, in bytes of the buffer per second."""

    def join(one: str, other: str, rate: str) -> GraphLink:
        return GraphLink(between=(one, other), rate=bits_per_second(rate) / 8)

    sites = [int(site) for site in options.sites or ["0"] * options.hosts]
    hosts = [f"host{n}" for n in range(options.hosts)]
    switches = [f"switch{n}" for n in range(max(sites) + 1)]
    links = [
        join(host, switches[site], rate)
        for host, site, rate in zip(hosts, sites, rates(options), strict=True)
    ]
    links += [join(one, other, options.trunk) for one, other in pairwise(switches)]
    graph = Graph(hosts=hosts, switches=switches, links=links, rate=1, ranks_per_host=options.ranks_per_host)
    return synthesise(SimulatedNetwork(topology=graph)).bound


def chosen(network: Network, options: Namespace) -> list[Contestant]:
    found = []
    for name in options.contestants:
        if name == OURS:
            found += [
                network.ours(transport, algorithm, guard, reads)
                for transport in options.transport
                for algorithm in options.algorithms
                for guard in options.guards
                for reads in (options.reads if "ofi" in transport else [""])
            ]
        else:
            found.append(PEERS[name](network))
    return found


# --- measuring -------------------------------------------------------------------------------------------------


def raw_tcp(
    hosts: Sequence[Place], pairs: Sequence[tuple[int, int]], options: Namespace
) -> list[dict[str, float]]:
    """Measures ``rate`` in payload bytes per second and ``round_trip_us``, for all pairs (from, to) at once."""
    connections = str(options.connections)
    seconds = str(RAW_SECONDS_LOSSY if options.one_lost_in else RAW_SECONDS)
    script = [sys.executable, "-m", "bench.network.raw_tcp"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    servers = [
        hosts[to].popen([*script, "serve", hosts[to].address, connections], **pipes) for _, to in pairs
    ]
    try:
        if any(server.stdout.readline() != "ready\n" for server in servers):
            raise SystemExit("the server for the plain TCP connection did not start")
        senders = [
            hosts[one].popen([*script, "send", hosts[to].address, connections, seconds]) for one, to in pairs
        ]
        lines = [json.loads(server.communicate(timeout=60)[0]) for server in servers]
        for sender in senders:
            sender.wait(timeout=10)
    finally:
        for server in servers:
            server.kill()
            server.communicate()
    return lines


def raw_figures(hosts: Sequence[Place], options: Namespace) -> dict[str, Any]:
    """Measures what limits all contestants: other programs, one connection, and one from each host to the next."""
    busy, line = busy_share(0.5), raw_tcp(hosts, [(1, 0)], options)[0]
    if len({host.address for host in hosts}) > 1:
        ring = [(index, (index + 1) % len(hosts)) for index in range(len(hosts))]
        line["ring_rate"] = min(each["rate"] for each in raw_tcp(hosts, ring, options))
    return {"busy": busy, **line}


def ping_pongs(network: Network, question: Question, options: Namespace) -> dict[int, float]:
    """Measures what libfabric's provider takes for a message of each small size, if one of ours uses libfabric."""
    if raw_fabric.missing() or not any("ofi" in transport for transport in options.transport):
        return {}
    small = [nbytes for nbytes in question.sizes if nbytes <= raw_fabric.MOST]
    return {nbytes: raw_fabric.ping_pong_us(network.hosts, network.provider, nbytes) for nbytes in small}


def wire_share(collective: str, ranks: int) -> float:
    """Returns the share of the buffer that each rank must at least send with any algorithm."""
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def timeout_for(question: Question, rate: float, round_trip_us: float) -> float:
    share = wire_share(question.collective, question.ranks)
    calls = sum(size * share / rate + round_trip_us / 1e6 * question.ranks for size in question.sizes)
    return 60 + 4 * question.budget * len(question.sizes) + SLOWEST * CALLS * calls


def question_for(collective: str, ranks: int, options: Namespace) -> Question:
    unit = 4 if collective == "all_reduce" else 4 * ranks  # one element, or one in each rank's block
    sizes = [byte_count(size) // unit * unit for size in options.sizes]
    return Question(collective, ranks, tuple(size for size in sizes if size), options.budget)


def measure(
    network: Network, contestants: Sequence[Contestant], question: Question, options: Namespace
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Returns a row for each launch, contestant and size, and the figures of raw_figures before each launch."""
    raw: list[dict[str, Any]] = []

    def rows(one: Contestant, launch: int) -> list[Row]:
        if len(raw) == launch:
            raw.append(raw_figures(network.hosts, options))
            raw[-1]["ping_pong_us"] = ping_pongs(network, question, options)
        timeout = timeout_for(question, raw[-1]["rate"], raw[-1]["round_trip_us"])
        found = one.rows(question, timeout)
        if isinstance(network.hosts, Hosts):
            network.hosts.kill()  # a launcher that was stopped may leave processes on the other hosts
        return found

    turns = {one.name: partial(rows, one) for one in contestants}
    return take_turns(turns, options.launches, probed=False).rows, raw


# --- output ----------------------------------------------------------------------------------------------------


def floor_rows(question: Question, raw: Sequence[dict[str, Any]]) -> list[Row]:
    """Returns the time that a plain connection needs for the bytes that each rank must at least send.

    Beside it, the time of the provider's own messages for the rounds that an all-reduce needs at least.
    """
    share, rows = wire_share(question.collective, question.ranks), []
    for nbytes in question.sizes:
        for launch, one in enumerate(raw):
            us = 1e6 * nbytes * share / one["rate"]
            rows.append(row_of("floor", nbytes, us, launch, question))
            if nbytes in (trips := one.get("ping_pong_us", {})):
                us = trips[nbytes] * raw_fabric.rounds(question.ranks)
                rows.append(row_of(PING_PONG, nbytes, us, launch, question))
    return rows


def row_of(name: str, nbytes: int, us: float, launch: int, question: Question) -> Row:
    times = dict.fromkeys(("median_us", "p25_us", "p75_us"), us)
    return {**question.row(name, nbytes), **times, "kind": "floor", "launch": launch, "wrong": 0}


def title(question: Question, raw: Sequence[dict[str, Any]], options: Namespace) -> str:
    where = "2 ranks over loopback"
    if not options.loopback:
        ranks = f"{options.ranks_per_host} rank{'s' * (options.ranks_per_host > 1)} each"
        where = f"{options.hosts} hosts, {ranks}, {options.rate}, {options.delay_ms:g} ms one way"
        if options.one_lost_in:
            where += f", one frame of {options.one_lost_in:,} lost"
        if options.sites:
            where += f", at sites {','.join(options.sites)} joined by {options.trunk}"
    many = options.connections
    connections = "a TCP connection carries" if many == 1 else f"{many} TCP connections carry"
    alone = ", ".join(f"{one['rate'] / 1e6:.1f}" for one in raw)
    ring = ", ".join(f"{one['ring_rate'] / 1e6:.1f}" for one in raw if "ring_rate" in one)
    trip = statistics.median(one["round_trip_us"] for one in raw)
    busy = ", ".join(f"{100 * one['busy']:.0f}" for one in raw)
    summed = question.collective == "all_reduce" and not options.loopback
    return "\n".join(
        [
            f"{question.collective}, float32 sum, in place, {where}; before each launch:",
            f"- {connections} {alone} MB/s; a round trip of a byte takes {trip:,.0f} us",
            *(
                [f"- if each host sends to the next, the slowest connection carries {ring} MB/s"]
                if ring
                else []
            ),
            *(
                [f"- along trees, the links allow {bound(options) / 1e6:.1f} MB/s of the buffer"]
                if summed
                else []
            ),
            f"- other programs keep the cores busy for {busy} per cent of the time",
        ]
    )


def tables(question: Question, rows: list[Row]) -> str:
    merged = merge(rows)
    results = Results({}, merged, refusals(merged))
    peers = [row["library"] for row in merged if row["kind"] == "peer" and row.get("problem") != ABSENT]
    references = {"floor": ["floor"], "best peer": list(dict.fromkeys(peers))}
    if any(row["library"] == PING_PONG for row in merged):
        references["ping-pong"] = [PING_PONG]
    return report(results, question.collective, references)


def write_lines(path: Path, rows: Sequence[Row], raw: Sequence[dict[str, Any]], options: Namespace) -> None:
    where = {
        name: getattr(options, name)
        for name in ("hosts", "ranks_per_host", "rate", "delay_ms", "one_lost_in")
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({**where, "raw": raw[row["launch"]], **row}) + "\n")


def main() -> None:
    options = parse_arguments()
    if not options.loopback and (reason := Hosts.permitted(delay_ms=options.delay_ms)):
        raise SystemExit(reason)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = Path(__file__).parents[1] / "results" / f"network-{stamp}.jsonl"
    with places(options) as hosts, tempfile.TemporaryDirectory() as folder:
        network = Network(hosts, options.ranks_per_host, Path(folder), options.provider)
        contestants = chosen(network, options)
        for collective in options.collectives:
            question = question_for(collective, network.ranks, options)
            rows, raw = measure(network, contestants, question, options)
            shown = tables(question, [*rows, *floor_rows(question, raw)])
            print(f"{title(question, raw, options)}\n\n{shown}\n", flush=True)
            write_lines(path, rows, raw, options)
    print(f"All figures are in {path}")


if __name__ == "__main__":
    main()
