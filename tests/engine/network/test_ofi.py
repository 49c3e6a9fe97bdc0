"""Ranks over libfabric: with every provider, with providers that lack something, and without any."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fabric import FAILING, PROGRAMS, ROOT, needs_headers, over, said
from rank import collectives

import ringreduce
from tests.conftest import needs_libfabric, slow_rows, slowly
from tests.processes import metronome, within

pytestmark = needs_libfabric

HANDLERS = """
import ctypes
import signal
libc = ctypes.CDLL(None)
def handler(number):
    action = ctypes.create_string_buffer(256)
    assert libc.sigaction(number, None, action) == 0
    return action.raw[:8]
numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGUSR1]
before = [handler(number) for number in numbers]
"""


@needs_headers
def test_our_declarations_are_those_of_the_headers():
    source = PROGRAMS / "libfabric_layout.cpp"
    compiler = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", str(source)]
    subprocess.run(compiler, check=True)


@pytest.mark.parametrize("provider", ["tcp", *slowly("tcp;ofi_rxm", "net", "udp;ofi_rxd", "shm", "sockets")])
def test_providers(provider, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", provider)
    try:
        found = over("ofi", collectives, 3)
    except ringreduce.RankFailed as error:
        if "finds no provider" not in str(error):
            raise
        pytest.skip(f"this libfabric has no provider {provider}")
    assert found == ["ofi"] * 3


def test_the_log_says_which_provider(monkeypatch, capfd):
    monkeypatch.setenv("RINGREDUCE_LOG", "info")
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", "tcp")
    monkeypatch.setenv("RINGREDUCE_OFI_DOMAIN", "lo")
    over("ofi", lambda comm: comm.barrier(), 2)
    assert re.search(
        r"; messages go through provider tcp.* of libfabric \d+\.\d+, domain lo, no card: ",
        log := capfd.readouterr().err,
    ), log


def _bytes_over_sockets():
    """Those that this process has sent over its TCP connections, as the kernel counts them."""
    acknowledged, total = slice(120, 128), 0  # in tcp_info
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
            total += int.from_bytes(info[acknowledged], sys.byteorder)
    return total


@pytest.mark.parametrize(("transport", "most"), [("ofi", 20_000), ("tcp", None)])
def test_only_control_messages_take_the_sockets(transport, most, monkeypatch):
    """The provider shm has no sockets, so these are the transport's own."""
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", "shm")

    def rank_main(comm):
        x = np.ones(1 << 18, "float32")
        for count in (10, len(x)):
            comm.all_reduce(x[:count])
        sent = _bytes_over_sockets()
        comm.barrier()
        return sent

    for sent in over(transport, rank_main, 2):
        assert sent < most if most else sent > 1 << 18


def test_the_program_keeps_its_signal_handlers():
    """libpsm2, which libfabric may load, replaces those for Ctrl-C and for faults."""
    program = HANDLERS + FAILING + "print(before == [handler(number) for number in numbers])"
    assert said({}, {}, program=program) == ["ofi 2.0\nTrue"] * 2


def test_hosts(tmp_path):
    """shm+ofi is shared memory inside a host, and the fabric between hosts."""
    program = FAILING.replace('"ofi"', '"shm+ofi"')
    hosts = [{"RINGREDUCE_HOST": host} for host in "aab"]
    assert said(*hosts, program=program) == ["shm+ofi 3.0"] * 3
    assert said(*hosts[:2], program=program) == ["shm 2.0"] * 2


# --- what providers lack ---------------------------------------------------------------------------------------------


@needs_headers
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("old", "rank 0: libfabric 1.5 is too old: install 1.9 or later"),
        *slow_rows(
            ("tiny", "of libfabric sends only 1000 bytes at once, and 4096 are needed"),
            (
                "untagged",
                "of libfabric compares fewer than 56 bits of a tag: choose another one (RINGREDUCE_OFI_PROVIDER)",
            ),
            ("unopenable", "(RINGREDUCE_OFI_PROVIDER and RINGREDUCE_OFI_DOMAIN choose others)"),
            ("prefix", "of libfabric asks for more of a message than room for its context"),
        ),
    ],
)
def test_what_providers_must_have(what, why, shim):
    for line in said(shim(what), shim(what)):
        assert line.startswith("rank 0: "), line
        assert why in line, line
        assert "\n" not in line, line


def test_no_libfabric(tmp_path):
    (tmp_path / "libfabric.so.1").write_text("no library")
    without = {"LD_LIBRARY_PATH": str(tmp_path)}
    for line in said({}, without):
        assert line.startswith("rank 1: libfabric cannot be loaded ("), line
        assert line.endswith("install it (Debian: libfabric1), or choose transport tcp"), line


def test_a_libfabric_without_a_function(tmp_path):
    (tmp_path / "none.c").write_text("unsigned fi_version(void) { return 1 << 16 | 9; }")
    library = tmp_path / "libfabric.so.1"
    subprocess.run(["gcc", "-shared", tmp_path / "none.c", "-o", library], check=True)
    for line in said({}, {"LD_LIBRARY_PATH": str(tmp_path)}):
        assert line == (
            "rank 1: libfabric.so.1 has no function fi_getinfo: install libfabric 1.9 or later, or choose transport tcp"
        )


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (
            {"RINGREDUCE_OFI_PROVIDER": "nowhere"},
            "finds no provider nowhere with reliable tagged messages; those",
        ),
        *slow_rows(
            ({"RINGREDUCE_OFI_DOMAIN": "nowhere"}, "finds no domain nowhere with reliable tagged messages"),
            (
                {"RINGREDUCE_OFI_PROVIDER": "tcp", "RINGREDUCE_OFI_DOMAIN": "lo,nowhere"},
                "finds no domain nowhere of provider tcp with reliable tagged messages",
            ),
        ),
    ],
)
def test_settings_that_cannot_be_had(variables, why):
    for line in said({}, variables):
        assert line.startswith("rank 1: "), line
        assert why in line, line


def test_ranks_with_different_providers():
    for line in said({"RINGREDUCE_OFI_PROVIDER": "tcp"}, {"RINGREDUCE_OFI_PROVIDER": "shm"}):
        assert line.startswith(
            "all ranks must use the same provider of libfabric in the same way: it is tcp"
        ), line
        assert ", shm (address format " in line, line
        assert "on rank 1 (RINGREDUCE_OFI_PROVIDER" in line, line


@pytest.mark.slow
def test_ranks_that_do_not_agree_on_remote_reads():
    variables = {"RINGREDUCE_OFI_PROVIDER": "tcp"}
    for line in said({**variables, "RINGREDUCE_OFI_RMA": "1"}, variables):
        assert re.fullmatch(
            r"all ranks must use the same provider of libfabric in the same way: it is (tcp\S*) \(address format \d+, "
            r"with remote reads\) on rank 0, \1 \(address format \d+, without remote reads\) on rank 1 "
            r"\(RINGREDUCE_OFI_PROVIDER, RINGREDUCE_OFI_DOMAIN and RINGREDUCE_OFI_RMA choose\)",
            line,
        ), line


def test_a_group_keeps_what_it_was_made_with():
    """Groups that are made of it do the same, whatever a rank's environment says by then."""

    def rank_main(comm):
        if comm.rank == 0:
            os.environ.update(RINGREDUCE_OFI_RMA="1", RINGREDUCE_OFI_PROVIDER="nowhere")
        with comm.split(0) as again:
            again.all_reduce(ringreduce.zeros(1 << 18))
            return again.transport, again.statistics().counts["bytes_read_remotely"]

    assert over("ofi", rank_main, 2) == [("ofi", 0)] * 2


def test_encryption_is_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_SECRET", "a test's")
    with pytest.raises(
        ValueError, match="transport ofi cannot encrypt its messages, because they go through a fabric"
    ):
        ringreduce.init(0, 1, transport="ofi", encrypt=True)


# --- failures --------------------------------------------------------------------------------------------------------


def _survive(comm, count, place):
    """The last rank dies amid large or small calls: when the others have noticed, and what they do then."""
    x = np.ones(count, "float32")
    for _ in range(3):
        comm.all_reduce(x)
    comm.barrier()
    last = comm.size - 1
    if comm.rank == last:
        Path(place).write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ringreduce.PeerLost) as lost:
        while True:
            comm.all_reduce(x)
    at = time.monotonic()
    assert lost.value.rank == last
    with comm.shrink() as left:
        y = np.ones(count, "float32")
        left.all_reduce(y)
        assert (left.transport, left.size) == ("ofi", last)
        assert (y == last).all()
    Path(f"{place}.{comm.rank}").write_text(str(at))


@pytest.mark.parametrize("count", [1 << 20, *slowly(1)])
def test_a_rank_dies(count, tmp_path):
    place = str(tmp_path / "died")
    with metronome, pytest.raises(ringreduce.RankFailed, match="rank 2"):
        over("ofi", _survive, 3, count, place)
    died = float(Path(place).read_text())
    for rank in range(2):
        assert float(Path(f"{place}.{rank}").read_text()) - died < within()


def test_a_timeout_names_the_rank_that_does_not_come(tmp_path):
    def rank_main(comm):
        comm.barrier()
        if comm.rank == 2:
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            return
        with pytest.raises(ringreduce.TimeoutError) as late:
            comm.all_reduce(np.ones(100_000))
        (tmp_path / str(comm.rank)).touch()
        assert late.value.rank == 2

    ringreduce.run(rank_main, 3, transport="ofi", timeout=4.0)


@pytest.mark.slow
def test_a_rank_that_closes_early_leaves_its_messages():
    def rank_main(comm):
        count = 300_000
        if comm.rank == 0:
            for peer in (1, 2):
                comm.send(np.full(1000, 7.0), peer)
                comm.send(np.full(count, 8.0), peer)
            return comm.close()
        time.sleep(0.3 * comm.rank)
        small, large = np.zeros(1000), np.zeros(count)
        comm.recv(small, 0)
        comm.recv(large, 0)
        assert (small == 7).all()
        assert (large == 8).all()

    over("ofi", rank_main, 3)
