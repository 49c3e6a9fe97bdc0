"""``ringreduce synthesise``, as a program."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pydantic")

TWO_SITES = """
[network]
kind = "sites"
hosts = [2, 2]
rate = "1 Gbit/s"
trunk = "500 Mbit/s"
trunk_latency_us = 20
"""
APART = """
[network]
kind = "graph"
hosts = ["a", "b", "c"]
rate = "1 Gbit/s"
links = [{ between = ["a", "b"] }]
"""


def synthesise(tmp_path, text, *options):
    file = tmp_path / "network.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "ringreduce", "synthesise", "--network", str(file), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_what_it_prints(tmp_path):
    done = synthesise(tmp_path, TWO_SITES, "-b", "1K,16M")
    assert done.returncode == 0, done.stderr
    bound, due, trees, _, small, large = done.stdout.splitlines()
    assert bound == "all_reduce, 4 ranks, along trees: at most 62.5 MB/s of the buffer"
    assert due.startswith("because of site") and "backbone" in due
    assert "2 (100 %)" in trees
    assert small.split()[:3] == ["1", "KiB", "recursive_doubling"]
    assert "synthesised" in large and int(large.split()[-2]) >= 95


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (APART, (), "network.toml: the network is not connected: there is no path from 'a' to 'c'"),
        (
            TWO_SITES.replace("trunk =", "trnk ="),
            (),
            "network.toml: network.sites.trnk: there is no such key",
        ),
        (TWO_SITES, ("-n", "5"), "the network has a fixed number of ranks"),
    ],
)
def test_what_is_wrong_takes_one_line(tmp_path, text, options, message):
    done = synthesise(tmp_path, text, *options)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
