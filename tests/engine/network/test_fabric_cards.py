"""Whether `auto` takes a fabric: the hosts' cards are files of a test, and libfabric pretends to reach them."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import pytest
from fabric import ROOT, needs_headers, printed, said

from tests.conftest import needs_libfabric, slow_rows
from tests.processes import python

PROGRAM = """
import sys
import numpy as np
import ringreduce
with ringreduce.init(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], timeout=20) as comm:
    assert comm.all_reduce(np.ones(100_000))[0] == comm.size
    with comm.split(comm.rank % 2) as half:
        assert half.all_reduce(np.ones(10))[0] == half.size
        halves = half.transport
    loaded = any("/libfabric" in line for line in open("/proc/self/maps"))
    print(comm.transport, halves, "loaded" if loaded else "not loaded")
    print(comm.explain(1000))
"""


def needs_shim(test):
    return needs_libfabric(needs_headers(test))


class Host:
    """A host of two cores, described by the files in /sys that are read."""

    def __init__(self, root: Path) -> None:
        self.root, self._sys = root, root / "sys"
        self.cards: list[str] = []
        online = self._sys / "devices/system/cpu/online"
        online.parent.mkdir(parents=True)
        online.write_text("0-1\n")

    def card(self, name, driver="mlx5_core", *, kind="infiniband", state="4: ACTIVE", node=-1):
        self.cards.append(name)
        device = self._sys / "class" / kind / name / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"/nowhere/drivers/{driver}")
        (device / "numa_node").write_text(f"{node}\n")
        if kind == "infiniband":
            port = device.parent / "ports" / "1"
            port.mkdir(parents=True)
            (port / "state").write_text(f"{state}\n")
            (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
        return self

    def rxe(self, name):
        """What the kernel pretends over an Ethernet card."""
        self.card(name, "e1000e")
        (self._sys / "class/infiniband" / name / "parent").write_text("eth0\n")
        return self

    def nodes(self, **cores):
        for node, mask in cores.items():
            folder = self._sys / "devices/system/node" / node
            folder.mkdir(parents=True)
            (folder / "cpumap").write_text(f"{mask}\n")
        return self

    def variables(self, host="a", **more):
        # Not those that a test's own machine may have.
        return {
            "RINGREDUCE_TEST_SYSTEM": str(self.root),
            "RINGREDUCE_HOST": host,
            "RINGREDUCE_LOG": "info",
            **more,
        }


@pytest.fixture
def new_host(tmp_path):
    numbers = itertools.count()
    return lambda: Host(tmp_path / f"host{next(numbers)}")


def pretending(shim, provider="verbs;ofi_rxm", domains="mlx5_0"):
    # Without it, libfabric touches 70 MB for the buffers of each rank.
    return shim("cards", SHIM_PROVIDER=provider, SHIM_DOMAINS=domains, FI_OFI_RXM_BUFFER_SIZE="1024")


# --- where there is no card ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda tree: tree, r"there is no fabric card in \S+/class/infiniband or \S+/class/cxi"),
        (lambda tree: tree.rxe("rxe0"), r"there is no fabric card in \S+ or \S+"),
        (
            lambda tree: tree.card("mlx5_0", state="1: DOWN").card("mlx5_1", state="2: INIT"),
            r"no port of the host's fabric cards is active \(mlx5_0, mlx5_1\)",
        ),
    ],
    ids=["none", "pretended", "unplugged"],
)
def test_without_a_card_nobody_loads_libfabric(prepare, why, new_host):
    tree = prepare(new_host())
    for out, log in printed(tree.variables("a"), tree.variables("b"), program=PROGRAM):
        ways, chosen = out.splitlines()
        assert ways == "tcp tcp not loaded"
        because = f"messages go through no fabric, because {why}"
        assert re.search(f"; {because}$", chosen), chosen
        assert re.search(f"messages are plain; {because}$", log, re.MULTILINE), log


def test_one_rank_without_a_card_is_enough(new_host):
    """Also on ranks that have one: all have to use the same transport."""
    bare, with_card = new_host(), new_host().card("mlx5_0")
    found = printed(with_card.variables("a"), bare.variables("b"), with_card.variables("c"), program=PROGRAM)
    assert [out.splitlines()[0] for out, _ in found] == [
        "tcp tcp not loaded",
        "tcp tcp not loaded",
        "tcp tcp not loaded",
    ]
    for rank in (0, 2):
        assert "through no fabric, because rank 1 has no fabric card that is active" in found[rank][0]
    assert "because there is no fabric card in" in found[1][0]


def test_one_host_needs_no_fabric(new_host):
    tree = new_host().card("mlx5_0")
    found = printed(tree.variables("a"), tree.variables("a"), program=PROGRAM)
    assert [out.splitlines()[0] for out, _ in found] == ["shm shm not loaded"] * 2
    assert "fabric" not in "".join(out + log for out, log in found)


def test_encrypted_messages_take_no_fabric(new_host):
    variables = {"RINGREDUCE_TLS": "1", "RINGREDUCE_SECRET": "a test's"}
    tree = new_host().card("mlx5_0")
    for out, _ in printed(
        tree.variables("a", **variables), tree.variables("b", **variables), program=PROGRAM
    ):
        assert out.startswith("tcp tcp not loaded\n")
        assert out.rstrip().endswith("through no fabric, because no fabric encrypts them")


# --- where there is one ----------------------------------------------------------------------------------------------


def _both(tree, shim, **more):
    return [tree.variables(host, **{**pretending(shim), **more}) for host in "ab"]


@cache
def release():
    """In a process of its own: libfabric's psm2 replaces the signal handlers of all that is forked later."""
    code = "import ctypes; print(ctypes.CDLL('libfabric.so.1').fi_version())"
    version = int(python("-c", code).stdout)
    return f"{version >> 16}.{version & 0xFFFF}"


@needs_shim
@pytest.mark.parametrize(
    ("provider", "domain", "driver", "kind"),
    [
        ("verbs;ofi_rxm", "mlx5_0", "mlx5_core", "infiniband"),
        *slow_rows(
            ("opx", "hfi1_0", "hfi1", "infiniband"),
            ("psm3", "mlx5_0", "mlx5_core", "infiniband"),
            ("efa", "rdmap0s31-rdm", "efa", "infiniband"),
            ("cxi", "cxi0", "cxi_core", "cxi"),
            ("psm2", "autoselect_one", "hfi1", "infiniband"),
        ),
    ],
)
def test_a_provider_that_reaches_a_card(provider, domain, driver, kind, new_host, shim):
    name = domain.removesuffix("-rdm") if domain != "autoselect_one" else "hfi1_0"
    tree = new_host().card(name, driver, kind=kind)
    variables = pretending(shim, provider, domain)
    for out, log in printed(*(tree.variables(host, **variables) for host in "ab"), program=PROGRAM):
        ways, chosen = out.splitlines()
        assert ways == "ofi ofi loaded"
        rate = ", 100 Gb/sec (4X EDR)" if kind == "infiniband" else ""
        driver = driver.removesuffix("_core") if kind == "cxi" else driver
        card = f"domain {domain}, card {name} ({driver}{rate})"
        way = f"messages go through provider {provider} of libfabric {release()}, {card}"
        assert chosen.endswith(f"; {way}; ranks read large messages where they are"), chosen
        assert way in log


@needs_shim
@pytest.mark.parametrize(
    ("provider", "domain", "driver"),
    [
        ("psm3", "eth0", "mlx5_core"),  # through the kernel
        *slow_rows(
            ("psm2", "autoselect_one", "mlx5_core"),
            ("efa", "mlx5_0", "mlx5_core"),
            ("shm", "shm", "mlx5_core"),
            ("sockets", "eth0", "mlx5_core"),
            ("opx", "hfi1_0", "mlx5_core"),
            ("verbs;ofi_rxm", "hfi1_0", "hfi1"),
            ("udp;ofi_rxd", "eth0", "mlx5_core"),
        ),
    ],
)
def test_a_provider_that_does_not(provider, domain, driver, new_host, shim):
    tree = new_host().card("mlx5_0", driver)
    variables = pretending(shim, provider, domain)
    for out, _ in printed(*(tree.variables(host, **variables) for host in "ab"), program=PROGRAM):
        ways, chosen = out.splitlines()
        assert ways == "tcp tcp loaded"
        assert (
            "through no fabric, because rank 0: no provider of libfabric that sends tagged messages uses"
            in chosen
        )
        assert f"the host's mlx5_0 ({driver}, 100 Gb/sec (4X EDR)); fi_info lists providers" in chosen


def _log_line(text):
    """A line of the log about the way of messages, without addresses and line breaks."""
    return re.sub("listens on .*?;", "listens on an address;", " ".join(text.split()))


@needs_shim
def test_the_log_is_what_the_documentation_shows(new_host, shim):
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    shown = re.search(r"^ {4}ringreduce\[rank 0\] info: listens(?:.|\n {4})*", page, re.MULTILINE)[0]
    shown = [_log_line(line) for line in re.split(r"(?=ringreduce\[)", shown.strip()) if line]
    tree = new_host().card("mlx5_0", node=0)
    hosts = [tree.variables(host, **pretending(shim)) for host in "ab"]
    logs = [printed(*ranks, program=PROGRAM)[0][1] for ranks in (hosts, [*hosts, new_host().variables("c")])]
    for line, log in zip(shown, logs, strict=True):
        assert line in map(_log_line, log.splitlines())


@pytest.mark.slow
@needs_shim
def test_hosts_of_several_ranks(new_host, shim):
    tree = new_host().card("mlx5_0")
    ranks = [tree.variables(host, **pretending(shim)) for host in "aabb"]
    assert [line.splitlines()[0] for line in said(*ranks, program=PROGRAM)] == ["shm+ofi ofi loaded"] * 4


def _cards_of(out):
    return re.findall(r"card (\w+) ", out)


def _share(shim, trees, **more):
    """The cards that each rank takes, on hosts that are described."""
    ranks = [
        tree.variables(host, **pretending(shim, domains=",".join(tree.cards)), **more) for tree, host in trees
    ]
    return [_cards_of(out) for out in said(*ranks, program=PROGRAM)]


@pytest.mark.slow
@needs_shim
def test_ranks_of_a_host_share_its_cards(new_host, shim):
    tree = new_host().card("mlx5_0").card("mlx5_1").card("mlx5_2", state="1: DOWN")
    found = _share(shim, [(tree, host) for host in "aaabb"])
    assert found == [["mlx5_0"], ["mlx5_1"], ["mlx5_0"], ["mlx5_0"], ["mlx5_1"]]


@pytest.mark.slow
@needs_shim
def test_a_rank_takes_all_cards_that_there_are_for_it(new_host, shim):
    tree = new_host().card("mlx5_0").card("mlx5_1").card("mlx5_2").card("mlx5_3")
    cards = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert _share(shim, [(tree, host) for host in "aabb"]) == [cards[:2], cards[2:]] * 2
    assert _share(shim, [(tree, host) for host in "ab"]) == [cards] * 2


@needs_shim
def test_all_ranks_use_as_many_cards_as_the_one_with_the_fewest(new_host, shim):
    two, one = new_host().card("mlx5_0").card("mlx5_1"), new_host().card("mlx5_0")
    assert _share(shim, [(two, "a"), (one, "b"), (two, "c")]) == [["mlx5_0"]] * 3


@needs_shim
def test_the_cards_that_are_near(new_host, shim):
    """Node 1 has the cores that may be used, node 0 others."""
    tree = new_host().nodes(node0="c", node1="00000000,00000003")
    for card, node in (("mlx5_0", 0), ("mlx5_1", 1), ("mlx5_2", 0), ("mlx5_3", 1)):
        tree.card(card, node=node)
    four = [["mlx5_1"], ["mlx5_3"]] * 2
    assert _share(shim, [(tree, host) for host in "aaaabbbb"]) == four * 2
    assert _share(shim, [(tree, host) for host in "ab"]) == [["mlx5_1", "mlx5_3", "mlx5_0", "mlx5_2"]] * 2
    found = said(
        *(tree.variables(host, **pretending(shim, domains="mlx5_1")) for host in "ab"), program=PROGRAM
    )
    assert "mlx5_1 (mlx5_core, 100 Gb/sec (4X EDR), NUMA node 1)" in found[0]


@pytest.mark.slow
@needs_shim
def test_domains_of_the_users_choice(new_host, shim):
    tree = new_host().card("mlx5_0").card("mlx5_1").card("mlx5_2")
    trees = [(tree, host) for host in "ab"]
    for wish in ("mlx5_1", "mlx5_2,mlx5_0"):
        assert _share(shim, trees, RINGREDUCE_OFI_DOMAIN=wish) == [wish.split(",")] * 2
    shared = _share(shim, [(tree, host) for host in "aabb"], RINGREDUCE_OFI_DOMAIN="mlx5_2,mlx5_0")
    assert shared == [["mlx5_2"], ["mlx5_0"]] * 2


@pytest.mark.slow
@needs_shim
def test_a_provider_of_the_users_choice(new_host, shim):
    """That is no faster than sockets: auto takes none, and ofi takes it."""
    tree = new_host().card("mlx5_0")
    variables = _both(tree, shim, RINGREDUCE_OFI_PROVIDER="tcp")
    for out in said(*variables, program=PROGRAM):
        assert out.startswith("tcp tcp loaded\n")
        assert (
            "through no fabric, because rank 0: RINGREDUCE_OFI_PROVIDER asks for one that uses no card" in out
        )
    for out in said(*variables, program=PROGRAM.replace("timeout", "transport='ofi', timeout")):
        assert out.startswith("ofi ofi loaded\n")
        assert "no card: RINGREDUCE_OFI_PROVIDER asks for one that uses no card" in out


@needs_shim
def test_ranks_that_find_different_providers(new_host, shim):
    trees = new_host().card("mlx5_0"), new_host().card("rdmap0s31", "efa")
    variables = pretending(shim), pretending(shim, "efa", "rdmap0s31-rdm")
    ranks = [tree.variables(host, **own) for tree, own, host in zip(trees, variables, "ab", strict=True)]
    for out in said(*ranks, program=PROGRAM):
        assert out.startswith("tcp tcp loaded\n")
        assert (
            "through no fabric, because all ranks must use the same provider of libfabric in the same way"
            in out
        )
        assert ": it is verbs;ofi_rxm (address format " in out
        assert "efa (address format " in out


def test_a_card_without_libfabric(new_host, tmp_path):
    (tmp_path / "libfabric.so.1").write_text("no library")
    tree, without = new_host().card("mlx5_0"), {"LD_LIBRARY_PATH": str(tmp_path)}
    for out in said(*(tree.variables(host, **without) for host in "ab"), program=PROGRAM):
        assert out.startswith("tcp tcp not loaded\n")
        assert "through no fabric, because rank 0: libfabric cannot be loaded (" in out
        assert out.endswith("install it (Debian: libfabric1), or choose transport tcp")


@needs_libfabric
def test_ofi_takes_no_provider_without_its_card(new_host):
    """libfabric prefers psm3 to tcp, also where it has to send by the kernel."""
    program = PROGRAM.replace("timeout", "transport='ofi', timeout")
    for out in said(new_host().variables("a"), new_host().variables("b"), program=program):
        assert re.search(
            "through provider tcp.* of libfabric .*, domain .*, no card: there is no fabric card in", out
        ), out
