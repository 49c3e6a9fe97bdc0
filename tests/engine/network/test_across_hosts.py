"""Ranks on several hosts, which are namespaces here: collectives, links that are cut, ranks that die or are slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.network.hosts import Hosts
from bench.network.links import script
from tests.conftest import needs_libfabric, slow_rows, slowly
from tests.processes import metronome, within

PORT = 23456
ROOT = Path(__file__).resolve().parents[3]
RANK = Path(__file__).with_name("rank.py")
why_not = Hosts.permitted()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))


class Ranks:
    """So many ranks on each host, all in one job."""

    def __init__(
        self,
        hosts: Hosts,
        scenario: str,
        place: str | None = None,
        per_host: int | Sequence[int] = 1,
        transport: str = "",
        **variables: str,
    ) -> None:
        place = place or f"tcp://{hosts[0].address}:{PORT}"
        counts = [per_host] * len(hosts) if isinstance(per_host, int) else per_host
        ranks = [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]
        transport = transport or ("tcp" if per_host == 1 else "auto")
        self.processes = []
        for rank, host in enumerate(ranks):
            # All are on one machine, and could share memory after all.
            env = {"PYTHONPATH": str(ROOT), "RINGREDUCE_SECRET": "a test's", "RINGREDUCE_HOST": host.name}
            arguments = [str(RANK), str(rank), str(len(ranks)), place, scenario, transport]
            self.processes.append(
                host.popen(
                    [sys.executable, *arguments],
                    env={**os.environ, **env, **variables},
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        metronome.start()

    def wait_for(self, word: str) -> None:
        for process in self.processes:
            line = ""
            while line.strip() != word:
                line = process.stdout.readline()
                assert line, process.communicate()[1]

    def answers(self, *dead: int) -> list:
        """What each rank has said last; None for one that is dead."""
        found = []
        for rank, process in enumerate(self.processes):
            out, err = process.communicate(timeout=200)
            assert rank in dead or process.returncode == 0, f"rank {rank}: {err}"
            found.append(None if rank in dead else json.loads(out.splitlines()[-1]))
        metronome.stop()
        return found


@pytest.mark.parametrize("number", [3, *slowly(4, 5), *slowly(2)])
def test_collectives(number):
    with Hosts(number) as hosts:
        assert Ranks(hosts, "collectives").answers() == ["tcp"] * number


def test_the_log_names_interfaces_and_links():
    with Hosts(2) as hosts:
        ranks = Ranks(hosts, "collectives", RINGREDUCE_LOG="info")
        said = [process.communicate(timeout=200)[1] for process in ranks.processes]
    for host, text in zip(hosts, said, strict=True):
        assert f"listens on {host.address}:" in text
    assert "a group of 2 ranks over tcp on 2 hosts (ranks 0; 1)" in said[0]
    assert "links between hosts: up to " in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(2, 2), *slowly((3, 2), (2, 3))])
def test_several_ranks_on_each_host(grid):
    number, per_host = grid
    with Hosts(number) as hosts:
        ranks = Ranks(hosts, "collectives", per_host=per_host)
        assert ranks.answers() == ["shm+tcp"] * number * per_host


def test_more_ranks_on_one_host_than_on_the_other():
    with Hosts(2) as hosts:
        assert Ranks(hosts, "collectives", per_host=[1, 5]).answers() == ["shm+tcp"] * 6


@pytest.mark.slow
@needs_libfabric
@pytest.mark.parametrize(
    ("domains", "reads"), [("eth0,eth1", "1"), *slow_rows(("eth0", "0"), ("eth0,eth1", "0"))]
)
def test_a_fabric_of_two_networks(domains, reads):
    """Each host has an interface to each. The bytes of large messages take those that are named, in equal parts."""
    with Hosts(2, rate=None) as hosts:
        one, other = (host.namespace for host in hosts)
        script(one, f"ip link add eth1 type veth peer name eth1 netns {other}")
        for host in hosts:
            script(host.namespace, f"ip address add 10.1.0.{host.index + 1}/24 dev eth1; ip link set eth1 up")
        for host in hosts:  # libfabric lists no others, and the kernel may take a second
            script(host.namespace, "until ip link show eth1 | grep -q 'state UP'; do sleep 0.01; done")
        wish = {"PROVIDER": "tcp", "DOMAIN": domains, "RMA": reads}
        variables = {f"RINGREDUCE_OFI_{name}": value for name, value in wish.items()}
        answers = Ranks(hosts, "over_each_interface", transport="ofi", **variables).answers()
    for eth0, eth1, total in answers:
        if domains == "eth0":
            assert eth0 > total > 100 * eth1
        else:
            assert min(eth0, eth1) > 0.4 * total


def test_ipv6_alone():
    with Hosts(3) as hosts:
        for host in hosts:
            host.run(["ip", "-4", "address", "flush", "dev", host.interface], check=True)
        ranks = Ranks(hosts, "collectives", f"tcp://[{hosts[0].address6}]:{PORT}")
        assert ranks.answers() == ["tcp"] * 3


def test_last_words_over_a_slow_link():
    """Who sends much and leaves does so only when it has arrived."""
    with Hosts(2, rate="8mbit") as hosts:
        sizes = f"4096 {8 << 20} {8 << 20}"  # the system takes all of it at once
        hosts[0].run(["sh", "-c", f"echo {sizes} > /proc/sys/net/ipv4/tcp_wmem"], check=True)
        ranks = Ranks(hosts, "last_words", RINGREDUCE_LINKS="off")
        assert ranks.answers() == [float(1 << 20)] * 2


@pytest.mark.slow
def test_streams_to_a_place_far_away_share_messages():
    """Pieces of long messages overtake each other where packets are lost."""
    if reason := Hosts.permitted(delay_ms=15):
        pytest.skip(reason)
    with Hosts(2, rate=None, delay_ms=15, one_lost_in=300) as hosts:
        ranks = Ranks(hosts, "collectives", RINGREDUCE_TCP_STREAMS="4")
        assert ranks.answers() == ["tcp"] * 2


BY_HAND = """
import numpy, ringreduce
comm = ringreduce.init(timeout=30)
print(comm.transport, ringreduce.all_gather(numpy.array([comm.rank])).tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, *slowly(3)])
def test_torchruns_variables_set_by_hand(number):
    """They do not say how many ranks are here, and no agent of torchrun's keeps the store."""
    with Hosts(number) as hosts:
        ranks = [
            host.popen(
                [sys.executable, "-c", BY_HAND],
                env={**os.environ, "PYTHONPATH": str(ROOT), "RINGREDUCE_HOST": host.name, "RANK": str(rank),
                     "WORLD_SIZE": str(number), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT)},
                stdout=subprocess.PIPE, text=True,
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        for rank in ranks:
            assert rank.communicate(timeout=200)[0] == f"tcp {list(range(number))}\n"
            assert rank.returncode == 0


def test_an_interface_is_chosen():
    with Hosts(2) as hosts:
        ranks = Ranks(hosts, "collectives", RINGREDUCE_IFACE="eth0", RINGREDUCE_TCP_STREAMS="3")
        assert ranks.answers() == ["tcp"] * 2
        ranks = Ranks(hosts, "collectives", RINGREDUCE_IFACE="eth7")
        for process in ranks.processes:
            err = process.communicate(timeout=200)[1]
            assert process.returncode == 1
            assert "RINGREDUCE_IFACE must name an interface" in err and "eth0, lo, not 'eth7'" in err


@pytest.mark.slow
@pytest.mark.parametrize("per_host", [1, *slowly(2)])
def test_a_ring_goes_through_one_site_after_the_other(per_host):
    with Hosts(4, sites=[0, 1, 0, 1], trunk="200mbit") as hosts:
        answers = Ranks(hosts, "links", per_host=per_host).answers()
    order = answers[0][0]
    assert all(answer[0] == order for answer in answers)
    assert sorted(order) == list(range(4 * per_host))
    visited = [rank // per_host % 2 for rank in order]
    assert sum(visited[i] != visited[i - 1] for i in range(len(visited))) == 2, order


@pytest.mark.slow
def test_where_latency_is_high_few_rounds_are_chosen():
    with Hosts(3, delay_ms=5) as hosts:
        answers = Ranks(hosts, "links").answers()
    for _, latency, algorithm in answers:
        assert 5e-3 < latency < 0.1
        assert algorithm == "one_shot"  # recursive_doubling where hosts are near


def test_links_are_not_measured_if_a_rank_does_not_want_it():
    with Hosts(2) as hosts:
        ranks = Ranks(hosts, "unmeasured", RINGREDUCE_LINKS="off")
        assert ranks.answers() == [True, True]


@pytest.mark.parametrize("scenario", ["until_failure", *slowly("handing_out", "waiting")])
def test_a_host_is_cut_off(scenario):
    with Hosts(4) as hosts:
        ranks = Ranks(hosts, scenario)
        ranks.wait_for("begun")
        time.sleep(0.7)
        hosts[0].cut()
        at = time.monotonic()
        if scenario == "waiting":
            ranks.processes[0].kill()  # which nobody is told of
        answers = ranks.answers(0)
    for answer in answers[1:]:
        assert answer[:2] == ["PeerLost", 0], answers
        assert answer[2] - at < within(), answers


def test_a_rank_is_killed():
    with Hosts(4) as hosts:
        ranks = Ranks(hosts, "until_failure")
        ranks.wait_for("begun")
        time.sleep(0.7)
        at = time.monotonic()
        ranks.processes[1].send_signal(signal.SIGKILL)
        answers = ranks.answers(1)
    for answer in answers[:1] + answers[2:]:
        assert answer[:2] == ["PeerLost", 1], answers
        assert answer[2] - at < within(), answers


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, *slowly(2)])
def test_a_rank_among_others_of_its_host_is_killed(victim):
    with Hosts(2) as hosts:
        ranks = Ranks(hosts, "until_failure", per_host=2)
        ranks.wait_for("begun")
        time.sleep(0.7)
        at = time.monotonic()
        ranks.processes[victim].send_signal(signal.SIGKILL)
        answers = ranks.answers(victim)
    for rank in {0, 1, 2, 3} - {victim}:
        assert answers[rank][:2] == ["PeerLost", victim], answers
        assert answers[rank][2] - at < within(), answers


@pytest.mark.parametrize("per_host", [*slowly(1), 2])
def test_survivors_go_on(per_host):
    with Hosts(4 // per_host) as hosts:
        ranks = Ranks(hosts, "go_on", per_host=per_host)
        ranks.wait_for("begun")
        time.sleep(0.3)
        if per_host == 1:
            hosts[2].cut()
        ranks.processes[2].kill()
        answers = ranks.answers(2)
    assert [answer for answer in answers if answer] == [[2, 3, 4.0]] * 3


@pytest.mark.slow
def test_a_slow_rank_is_waited_for():
    with Hosts(3) as hosts:
        assert Ranks(hosts, "slow").answers() == [9.0] * 3
