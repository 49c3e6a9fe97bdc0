"""``ringreduce simulate``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from ringreduce.cli import main
from ringreduce.schedules import algorithms

pytest.importorskip("pydantic")

FILE = """
[network]
kind = "fat_tree"
hosts = 4
ranks_per_host = 2
hosts_per_leaf = 2
rate = "100 Gbit/s"
[costs.between]
send_us = 1
"""


GRAPH = """
[network]
kind = "graph"
hosts = ["a", "b"]
links = []
rate = 1e9
"""


def words(tmp_path, text, *options):
    file = tmp_path / "network.toml"
    file.write_text(text)
    return ["simulate", "--network", str(file), *options]


def simulate(tmp_path, *options, text=FILE):
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        status = main(words(tmp_path, text, *options))
    return CompletedProcess([], status, out.getvalue(), errors.getvalue())


def test_all_algorithms_are_compared_by_the_program(tmp_path):
    command = [sys.executable, "-m", "ringreduce", *words(tmp_path, FILE, "-b", "64K,16M")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    title, _, *rows = done.stdout.splitlines()
    assert title == "all_reduce, 8 ranks, simulated"
    assert len(rows) == 2 * len(algorithms("all_reduce")) and sum("swing" in row for row in rows) == 2
    times = [float(row.split()[3]) for row in rows]
    assert times == sorted(times[:12]) + sorted(times[12:])


def test_figures_pictures_and_traces(tmp_path):
    written = ["--picture", str(tmp_path / "a" / "ring.png"), "--trace", str(tmp_path / "ring.json")]
    done = simulate(tmp_path, "-a", "ring", "-b", "1M", "--format", "json", "-n", "4", *written)
    assert done.returncode == 0, done.stderr
    found = json.JSONDecoder().raw_decode(done.stdout)[0]
    assert found[0]["world"] == 4 and found[0]["seconds"] == pytest.approx(sum(found[0]["made_of"].values()))
    assert (tmp_path / "a" / "ring.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads((tmp_path / "ring.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"rank 0", "rank 3", "host0 > leaf0"} <= names
    assert any(event["ph"] == "X" and event["name"] == "transfer" for event in events)


OWN = """
from ringreduce.schedules import Recv, Round, Schedule, Send

def star(world, rank, root, hosts):
    assert hosts == [[0, 1], [2, 3], [4, 5], [6, 7]]
    others = [each for each in range(world) if each != root]
    rounds = [Round([Send([0], others)])] if rank == root else [Round(recvs=[Recv([0], root)])]
    return Schedule("broadcast", world, rank, 1, rounds, root)
"""


def test_algorithms_of_a_file(tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    name = f"{tmp_path}/my.py:star"
    done = simulate(
        tmp_path, "-c", "broadcast", "--root", "3", "-a", f"{name},tree", "-b", "64K", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    assert [one["algorithm"] for one in json.loads(done.stdout)] == [name, "tree"]
    for wrong, message in [
        (("-a", f"{tmp_path}/my.py:planet"), "has no function called 'planet'"),
        (("-a", f"{tmp_path}/your.py:star"), "there is no such file"),
        (("-a", name), f"'{name}' returned a schedule for broadcast, not all_reduce"),
    ]:
        done = simulate(tmp_path, *wrong)
        assert done.returncode == 2 and message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_barrier_is_simulated_once_whatever_the_sizes(tmp_path):
    done = simulate(tmp_path, "-c", "barrier", "-b", "8,1M", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(one["algorithm"] for one in found) == ["direct", "dissemination"]
    for one in found:
        assert one["nbytes"] == one["busbw"] == 0 and one["slices"] == 1 and one["made_of"]["latency"] > 0


def test_what_takes_no_time_is_valid_json(tmp_path):
    alone = '[network]\nkind = "flat"\nhosts = 1\nrate = 1e9'
    done = simulate(tmp_path, "-a", "auto,ring", "--format", "json", text=alone)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [(one["world"], one["seconds"], one["busbw"]) for one in found] == [(1, 0, 0)] * 2
    assert {one["bottleneck"] for one in found} == {"nothing takes time"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (FILE.replace("rate =", "rte ="), (), "network.toml: network.fat_tree.rte: there is no such key"),
        (FILE.replace("100 Gbit/s", "fast"), (), "network.fat_tree.rate: 'fast' is not a rate"),
        (FILE.replace("fat_tree", "fat"), (), "network.toml: network: Input tag 'fat'"),
        (FILE.replace("hosts = 4", "hosts = 3"), (), "network.toml: hosts, 3, must be a multiple of hosts_per_leaf, 2"),
        (FILE + "[", (), "network.toml: "),
        (FILE, ("-a", "rng"), "no all_reduce algorithm is called 'rng'"),
        (FILE, ("-n", "7"), "world must be a multiple of ranks_per_host, 2, up to 131072, not 7"),
        (FILE, ("--picture", "x.png"), "give one algorithm and one size"),
        (FILE, ("--network", "nowhere.toml"), "nowhere.toml: No such file"),
        (FILE, ("--network", "nowhere.json"), "nowhere.json: No such file"),
        ("broken = []" + FILE, (), "network.toml: broken: there is no such key"),
        (GRAPH, (), "network.toml: the network is not connected: there is no path from 'a' to 'b'"),
        (FILE, ("--root", "8"), "root must be in [0, 8), not 8"),
        (FILE, ("--seed", "-1"), "seed must be"),
        (FILE, ("-n", "5000000"), "up to 131072, not 5000000"),
        (FILE, ("-b", "12q"), "'12q' is not a number of bytes"),
        (FILE, ("-b", ","), "--algorithm and --bytes each need"),
        (FILE, ("-a", ""), "--algorithm and --bytes each need"),
        (FILE, ("-c", "all_produce"), "no collective is called 'all_produce'"),
        (FILE, ("-a", "ring", "--picture", "x.xyz"), "--picture x.xyz: Format 'xyz' is not supported"),
        (FILE, ("-a", "ring", "--picture", "/proc/x.png"), "--picture /proc/x.png: "),
        (FILE, ("-a", "ring", "--trace", "/"), "--trace /: "),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_names_it(tmp_path, text, options, message):
    done = simulate(tmp_path, *options, text=text)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
