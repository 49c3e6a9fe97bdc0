"""What the trainings between hosts share: the ranks, one on each host of bench/network/hosts.py, and their bytes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ringreduce
from bench.network.hosts import Hosts
from bench.network.rendezvous import Rendezvous


def printed(hosts: Hosts, module: str, words: list[str], limit: float) -> list[Any]:
    """Runs a module as a rank on each host, and returns the lines of JSON that the ranks print.

    Args:
        words: arguments, besides those of :func:`add_rank_options`.
        limit: seconds for all of it.
    """
    commands = [
        host.command(
            [sys.executable, "-m", module, "--rank", str(host.index), "--interface", host.interface, *words]
        )
        for host in hosts
    ]
    start = [sys.executable, "-m", "bench.network.start_ranks", json.dumps(commands)]
    try:
        done = subprocess.run(start, stdout=subprocess.PIPE, text=True, timeout=limit, check=True)
    finally:
        hosts.kill()
    return [json.loads(line) for line in done.stdout.splitlines()]


def add_rank_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, help="for the processes that it starts")
    parser.add_argument("--folder", type=Path, help="the same")
    parser.add_argument("--interface", help="the same")


@contextmanager
def joined(options: Namespace, ranks: int, timeout: float) -> Iterator[tuple[Any, Rendezvous]]:
    """Yields the communicator of a rank on its host, and where the ranks meet without the network."""
    # The hosts are on one machine, so ringreduce would otherwise use shared memory between them.
    os.environ.update(RINGREDUCE_HOST=platform.node(), RINGREDUCE_IFACE=options.interface)
    meeting = Rendezvous(options.rank, ranks, options.folder)
    with ringreduce.init(options.rank, ranks, meeting.exchange, timeout=timeout) as comm:
        yield comm, meeting
        meeting.barrier()


def sent(interface: str) -> int:
    """Returns the bytes that this host has sent so far, with all headers."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == interface:
            return int(fields.split()[8])
    raise ValueError(f"no interface {interface}")
