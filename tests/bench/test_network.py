"""The benchmark between hosts: how ranks meet, how they end, and what every table is measured by."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bench.network import network
from bench.network.contestants import Network, write_agent
from bench.network.rendezvous import Rendezvous
from ringreduce.bench.programs import Question
from ringreduce.bench.results import merge


def test_ranks_meet_in_a_folder(tmp_path: Path) -> None:
    found: dict[int, list[bytes]] = {}
    inside: list[int] = []

    def rank_main(rank: int) -> None:
        meeting = Rendezvous(rank, 3, tmp_path)
        found[rank] = meeting.exchange(b"from %d" % rank)
        for turn in range(50):
            inside.append(turn)
            meeting.barrier()
            assert inside.count(turn) == 3
        assert list(meeting.maximum(np.array([rank, -rank]))) == [2, 0]
        found[rank].append(b"done")

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=200)
    assert found == {rank: [b"from 0", b"from 1", b"from 2", b"done"] for rank in range(3)}


def test_a_rank_that_fails_ends_the_others() -> None:
    commands = [[sys.executable, "-c", f"import sys, time; time.sleep({s}); sys.exit(3)"] for s in (0, 60)]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "bench.network.start_ranks", json.dumps(commands)], timeout=30, check=False
    )
    assert done.returncode == 3 and time.monotonic() - start < 20


def test_the_agent_takes_what_an_mpirun_gives_to_ssh(tmp_path: Path) -> None:
    agent = str(write_agent([network.Loopback()], tmp_path / "agent"))
    command = [agent, "-x", "localhost", "echo", '"a  b";', "echo", "c"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "a  b\nc\n"
    assert subprocess.run([agent, "elsewhere", "echo"], capture_output=True, check=False).returncode == 1


def test_the_floor_is_what_each_rank_must_send() -> None:
    raw = [{"rate": 100e6, "round_trip_us": 100.0}, {"rate": 50e6, "round_trip_us": 100.0}]
    question = Question("all_reduce", 4, (1 << 20,), 0.1)
    (row,) = merge(network.floor_rows(question, raw))
    assert row["low_us"] == pytest.approx(1.5 * (1 << 20) / 100)
    assert row["high_us"] == pytest.approx(1.5 * (1 << 20) / 50)
    (gathered,) = network.floor_rows(Question("all_gather", 4, (1 << 20,), 0.1), raw[:1])
    assert gathered["median_us"] == pytest.approx(0.75 * (1 << 20) / 100)


def test_ranks_fill_one_host_after_the_other(tmp_path: Path) -> None:
    places = [network.Loopback(), network.Loopback()]
    ours = Network(places, 2, tmp_path).ours("tcp", "ring")
    ranks = json.loads(ours.command(Question("all_reduce", 4, (64,), 0.1))[-1])
    assert ours.name == "ringreduce:ring" and len(ranks) == 4
    assert [command[command.index("--rank") + 1] for command in ranks] == ["0", "1", "2", "3"]
    assert all(command[command.index("--algorithm") + 1] == "ring" for command in ranks)
