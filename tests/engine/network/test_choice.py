"""Which transport ranks get for what they ask for."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import ringreduce
from ringreduce import _engine
from tests.conftest import slow_rows, slowly

ROOT = Path(__file__).resolve().parents[3]
RANK = Path(__file__).with_name("rank.py")


@pytest.mark.parametrize("name", ["ip", "tcp+shm", "shm+", "shm+mpi+tcp", "SHM"])
def test_no_such_transport(name, monkeypatch):
    message = f" must be auto, shm, tcp, shm+tcp, ofi, shm+ofi, mpi or shm+mpi, not '{name}'"
    with pytest.raises(ValueError, match="^transport" + re.escape(message)):
        ringreduce.init(0, 1, transport=name)
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", name)
    with pytest.raises(ValueError, match="^RINGREDUCE_TRANSPORT" + re.escape(message)):
        ringreduce.init(0, 1)


@pytest.mark.parametrize("name", ["mpi", "shm+mpi"])
def test_ranks_that_mpi_has_not_brought_together(name, monkeypatch):
    message = f" {name} is only for communicators that ringreduce.init() creates"
    with pytest.raises(ValueError, match="^transport" + re.escape(message)):
        _engine.connect(0, 1, lambda blob: [blob], 5.0, None, name)
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", name)
    with pytest.raises(ValueError, match="^RINGREDUCE_TRANSPORT" + re.escape(message)):
        _engine.connect(0, 1, lambda blob: [blob], 5.0, None)


@pytest.mark.parametrize(
    ("hosts", "wanted", "becomes"),
    [
        ("001", "shm+tcp", "shm+tcp"),
        ("00", "shm+tcp", "shm"),
        *slow_rows(("001", "auto", "shm+tcp"), ("001", "tcp", "tcp"), ("01", "shm+tcp", "tcp")),
    ],
)
def test_what_a_name_becomes(hosts, wanted, becomes):
    assert answers(hosts, "collectives", wanted) == [becomes] * len(hosts)


@pytest.mark.parametrize("wanted", ["auto", *slowly("tcp")])
@pytest.mark.parametrize(
    ("labels", "hosts", "left"),
    [
        ("0110", [[0, 3], [1, 2]], [[0, 1], [2]]),
        *slow_rows(("00120", [[0, 1, 4], [2], [3]], [[0, 3], [1], [2]]), ("000", [[0, 1, 2]], [[0, 1]])),
    ],
)
def test_where_ranks_are(labels, hosts, left, wanted):
    for rank, (whole, part) in enumerate(answers(labels, "places", wanted)):
        host = next(i for i, ranks in enumerate(hosts) if rank in ranks)
        assert whole == [hosts, host, hosts[host].index(rank), len(hosts[host])]
        if rank:  # rank 0 is alone
            host = next(i for i, ranks in enumerate(left) if rank - 1 in ranks)
            assert part == [left, host, left[host].index(rank - 1), len(left[host])]
        else:
            assert part == [[[0]], 0, 0, 1]


def answers(hosts, scenario, transport):
    """What each rank prints at the end; those with the same letter share a host."""
    place = secrets.token_hex(8)
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), str(len(hosts)), place, scenario, transport],
            env={**os.environ, "PYTHONPATH": str(ROOT), "RINGREDUCE_HOST": host},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, host in enumerate(hosts)
    ]  # fmt: skip
    found = []
    for process in processes:
        said, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        found.append(json.loads(said.splitlines()[-1]))
    return found
