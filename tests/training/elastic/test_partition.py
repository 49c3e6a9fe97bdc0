"""Groups that are cut in two, on hosts that are namespaces here: at most one side continues, and can grow again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.network.hosts import Hosts
from tests.conftest import slow_rows

ROOT = Path(__file__).resolve().parents[3]
PORT = 23456
RANK = Path(__file__).with_name("partitioned.py")
why_not = Hosts.permitted()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))


class Ranks:
    """Programs of partitioned.py: one rank, or one newcomer, on each host."""

    def __init__(self, hosts: Hosts, per_host: list[int], *, transport: str = "auto") -> None:
        self.hosts, self.transport = hosts, transport
        self.where = [host for host, count in enumerate(per_host) for _ in range(count)]
        self.place = f"tcp://{','.join(host.address for host in hosts)}:{PORT}"
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, scenario: str, host: int, rank: int = -1) -> None:
        env = {
            "PYTHONPATH": str(ROOT),
            "RINGREDUCE_SECRET": "a test's",
            "RINGREDUCE_HOST": self.hosts[host].name,
            "RINGREDUCE_LINKS": "off",
        }
        arguments = [str(RANK), scenario, str(rank), str(len(self.where)), self.place, self.transport]
        self.processes[name] = self.hosts[host].popen(
            [sys.executable, *arguments],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_all(self, scenario: str) -> None:
        for rank, host in enumerate(self.where):
            self.start(str(rank), scenario, host, rank)

    def wait_for(self, word: str, *names: str) -> None:
        for name in names or tuple(self.processes):
            process, line = self.processes[name], ""
            while line.strip() != word:
                line = process.stdout.readline()
                assert line, f"{name}: {process.communicate()[1]}"

    def tell(self, *names: str) -> None:
        """Lets processes go on that wait for a line."""
        for name in names:
            print("go on", file=self.processes[name].stdin, flush=True)

    def answer(self, name: str) -> list:
        out, err = self.processes[name].communicate(timeout=200)
        assert self.processes[name].returncode == 0, f"{name}: {err}"
        return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("per_host", "cut", "winners"),
    [
        ([2, 2], 0, [0, 1]),
        *slow_rows(([1, 1], 1, [0]), ([1, 1, 1], 0, [1, 2]), ([1, 3], 0, [1, 2, 3]), ([2, 1, 1], 0, [0, 1])),
    ],
)
def test_at_most_one_side_goes_on(per_host, cut, winners):
    with Hosts(len(per_host)) as hosts:
        ranks = Ranks(hosts, per_host)
        ranks.start_all("work")
        ranks.wait_for("begun")
        hosts[cut].cut()
        found = {rank: ranks.answer(str(rank)) for rank in range(len(ranks.where))}
    others = [rank for rank in found if rank not in winners]
    for rank in winners:
        assert found[rank] == ["goes on", len(winners), winners], found
    for rank in others:
        assert found[rank] == ["MinorityError", winners[0]], found


def test_the_side_that_goes_on_grows_again_and_the_other_asks_in():
    """Host 0, where the job was started, is cut off. The others open the door; it comes back as a newcomer."""
    with Hosts(3) as hosts:
        ranks = Ranks(hosts, [1, 1, 1])
        ranks.start_all("work_and_grow")
        ranks.wait_for("begun")
        hosts[0].cut()
        ranks.wait_for("MinorityError 1", "0")
        hosts[0].heal()
        ranks.tell("0")
        found = [ranks.answer(str(rank)) for rank in range(3)]
    assert found == [[2, 3, 3.0], [0, 3, 3.0], [1, 3, 3.0]]


def test_a_side_that_was_left_out_does_not_take_the_others_for_dead():
    """It notices nothing of a cut that ends before it looks. The others have gone on, but their old sockets stay."""
    with Hosts(3) as hosts:
        ranks = Ranks(hosts, [1, 1, 1])
        ranks.start_all("sleep_through_a_cut")
        ranks.wait_for("begun")
        hosts[2].cut()
        ranks.wait_for("goes on", "0", "1")
        hosts[2].heal()
        ranks.tell("2")
        left_out = ranks.answer("2")
        ranks.tell("0", "1")
        assert [ranks.answer("0"), ranks.answer("1")] == [[0, 2, 2.0], [1, 2, 2.0]]
    assert left_out[0] in ("TimeoutError", "PeerLost", "MinorityError"), left_out


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_a_killed_rank_does_not_count(transport):
    """Its system says that it has ended, so half of the ranks is enough, without the lowest."""
    with Hosts(2) as hosts:
        ranks = Ranks(hosts, [1, 1], transport=transport)
        ranks.start_all("work")
        ranks.wait_for("begun")
        ranks.processes["0"].kill()
        assert ranks.answer("1") == ["goes on", 1, [1]]


@pytest.mark.slow
def test_the_door_is_where_newcomers_look():
    """Rank 0 has died, and with it its host. The lowest rank left is not where the job was started; another one is."""
    with Hosts(3) as hosts:
        ranks = Ranks(hosts, [1, 1, 1])
        ranks.place = f"tcp://{hosts[0].address},{hosts[2].address}:{PORT}"
        ranks.start_all("work_and_grow")
        ranks.wait_for("begun")
        hosts[0].cut()
        ranks.processes["0"].kill()
        ranks.start("newcomer", "come", 1)
        found = [ranks.answer(name) for name in ("1", "2", "newcomer")]
    assert found == [[0, 3, 3.0], [1, 3, 3.0], [2, 3, 3.0]]
