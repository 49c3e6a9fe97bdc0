"""Hosts of many cores, several NUMA nodes and cores of two speeds, and containers that may not use them all.

A folder with files as in /sys and /proc stands for a host's root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringreduce.cli import main
from ringreduce.cores import Core, HostCores, described, of_folder


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def system(
    root: Path, nodes: int, each: int, threads: int = 1, speeds: tuple[int, int] | None = None
) -> Path:
    """A host as Linux shows it: second threads have the highest numbers. With speeds, every second core is slow."""
    count = nodes * each
    files: dict[str, object] = {"sys/devices/system/cpu/online": f"0-{count * threads - 1}"}
    for node in range(nodes):
        spans = [f"{t * count + node * each}-{t * count + (node + 1) * each - 1}" for t in range(threads)]
        files[f"sys/devices/system/node/node{node}/cpulist"] = ",".join(spans)
    for number in range(count * threads):
        folder = f"sys/devices/system/cpu/cpu{number}"
        siblings = [str(number % count + t * count) for t in range(threads)]
        files[f"{folder}/topology/thread_siblings_list"] = ",".join(siblings)
        if speeds:
            files[f"{folder}/cpu_capacity"] = speeds[number % 2]
    return write(root, files)


def test_ranks_get_whole_physical_cores_of_one_node(tmp_path):
    host = of_folder(system(tmp_path, nodes=2, each=64, threads=2))
    assert host.count == 256
    shares = host.shares(8)
    assert shares[0] == [*range(16), *range(128, 144)]
    assert shares[4] == [*range(64, 80), *range(192, 208)]
    assert sorted(number for share in shares for number in share) == [*range(256)]


def test_more_ranks_than_physical_cores(tmp_path):
    host = of_folder(system(tmp_path, nodes=2, each=4, threads=2))
    assert host.shares(16) == [
        [0],
        [8],
        [1],
        [9],
        [2],
        [10],
        [3],
        [11],
        [4],
        [12],
        [5],
        [13],
        [6],
        [14],
        [7],
        [15],
    ]
    assert host.shares(17) == []
    assert [host.in_turn(rank) for rank in range(17)] == [*range(16), 0]


@pytest.mark.parametrize("ranks", range(1, 33))
def test_shares_are_equal_and_of_one_node(tmp_path, ranks):
    host = of_folder(system(tmp_path, nodes=4, each=8))
    shares = host.shares(ranks)
    assert len(shares) == ranks and len({len(share) for share in shares}) == 1
    assert len({number for share in shares for number in share}) == sum(map(len, shares))
    if ranks >= 4:
        assert all(len({number // 8 for number in share}) == 1 for share in shares)
        homes = [share[0] // 8 for share in shares]
        assert homes == sorted(homes)  # a ring crosses each boundary once
        assert max(map(homes.count, range(4))) - min(map(homes.count, range(4))) <= 1
    else:
        assert len(shares[0]) == 32 // ranks


def test_slow_cores_are_left_out_if_there_are_enough_fast_ones(tmp_path):
    host = of_folder(system(tmp_path, nodes=1, each=8, speeds=(1024, 400)))
    assert host.shares(2) == [[0, 2], [4, 6]]
    assert host.shares(4) == [[0], [2], [4], [6]]
    assert host.shares(5) == [[0], [1], [2], [3], [4]]
    assert [host.in_turn(rank) for rank in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_speeds_that_hardly_differ_are_one_kind():
    cores = [Core(n, physical=n, speed=speed) for n, speed in enumerate((5.1, 5.0, 4.9, 4.7))]
    assert HostCores(cores).shares(2) == [[0, 1], [2, 3]]


def test_cores_of_which_a_process_may_use_some(tmp_path):
    host = of_folder(system(tmp_path, nodes=2, each=4), allowed={1, 2, 3, 5})
    assert host.shares(2) == [[1], [2]]  # equal shares, each of one node
    assert host.shares(4) == [[1], [2], [3], [5]]


def test_a_host_without_such_files(tmp_path):
    host = of_folder(tmp_path, allowed={0, 3})
    assert host.count == 2 and host.shares(2) == [[0], [3]]
    with pytest.raises(ValueError, match="there is no list of cores"):
        of_folder(tmp_path)


ASK = """
import json
from ringreduce import _engine, cores
host = cores.usable()
print(json.dumps([_engine.usable_cores(), _engine.core_quota(), host.count, host.threads(2), _engine.tuning_file()]))
"""
PATH = "kubepods/pod1/box"
V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, 0),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 0),
        ({"sys/fs/cgroup/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": f"0::/{PATH}", f"sys/fs/cgroup/{PATH}/cpu.max": "400000 100000"}, 4),
        ({"proc/self/cgroup": f"0::/{PATH}", "sys/fs/cgroup/kubepods/cpu.max": "200000 100000",
          f"sys/fs/cgroup/{PATH}/cpu.max": "max 100000"}, 2),
        ({"proc/self/cgroup": "0::/../../box", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": f"4:cpu,cpuacct:/{PATH}\n1:name=systemd:/x",
          f"{V1}/{PATH}/cpu.cfs_quota_us": 600000, f"{V1}/{PATH}/cpu.cfs_period_us": 100000}, 6),
        ({"proc/self/cgroup": f"4:cpu,cpuacct:/docker/{PATH}",  # the host's path, in a container
          f"{V1}/cpu.cfs_quota_us": 150000, f"{V1}/cpu.cfs_period_us": 100000}, 2),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/", f"{V1}/cpu.cfs_quota_us": -1,
          f"{V1}/cpu.cfs_period_us": 100000}, 0),
        ({"proc/self/cgroup": f"12:cpuset:/{PATH}", "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": 100000}, 0),
    ],
)  # fmt: skip
def test_a_container_knows_its_limit(tmp_path, files, quota):
    write(system(tmp_path, nodes=2, each=128), files)
    environment = {**os.environ, "RINGREDUCE_TEST_SYSTEM": str(tmp_path), "RINGREDUCE_CACHE": "/c"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    count, found, again, threads, kept = json.loads(done.stdout)
    assert (count, found, again) == (quota or 256, quota, quota or 256)
    assert threads == max(1, (quota or 256) // 2)
    assert f"-{quota or 256}-cores.tuning" in kept


def explained(capsys, *words: object) -> list[str]:
    assert main(["explain", "-b", "1M", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_explain_of_a_described_host(capsys, tmp_path):
    file = tmp_path / "host.json"
    file.write_text(json.dumps({"nodes": 2, "cores_per_node": 64, "threads_per_core": 2, "quota": 16}))
    lines = explained(capsys, "-n", 4, "--topology", file)
    assert lines[2:] == [
        "256 cores, on 2 NUMA nodes, of which the container may use 16",
        "  rank 0: node 0, cores 0-31, 128-159",
        "  rank 1: node 0, cores 32-63, 160-191",
        "  rank 2: node 1, cores 64-95, 192-223",
        "  rank 3: node 1, cores 96-127, 224-255",
        "  4 threads for each; 2 of 4 links of a ring are between nodes",
    ]
    assert "more ranks than cores" in " ".join(explained(capsys, "-n", 17, "--topology", file)[:2])


def test_explain_of_a_copied_system(capsys, tmp_path):
    lines = explained(capsys, "-n", 3, "--topology", system(tmp_path, nodes=1, each=2))
    assert lines[2:] == ["2 cores, on 1 NUMA node", "  3 ranks share them, unbound"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sockets": 2}, "sockets: there is no such key"),
        ({"nodes": 0}, "nodes must be a number of type int from 1 on, not 0"),
        ({"cores_per_node": "many"}, "cores_per_node must be a number"),
    ],
)
def test_descriptions_that_are_wrong(table, message):
    with pytest.raises(ValueError, match=message):
        described(table)


def test_described_hosts_of_two_speeds():
    host = described({"nodes": 1, "cores_per_node": 4, "threads_per_core": 2, "slow_cores_per_node": 8})
    assert host.count == 16 and host.shares(4) == [[0, 12], [1, 13], [2, 14], [3, 15]]
