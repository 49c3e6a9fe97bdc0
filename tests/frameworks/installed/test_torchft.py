"""torchft trains over our process group: a replica that is killed comes back while the other one trains on."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from datetime import timedelta

import pytest

from tests.frameworks.installed.programs import ENVIRONMENT, EXAMPLES

if importlib.util.find_spec("torchft") is None:
    pytest.skip("torchft is not installed", allow_module_level=True)

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions, ReduceScatterOptions
from torchft.coordination import LighthouseServer

import ringreduce
from ringreduce.torchft import ProcessGroupRingreduce

pytestmark = pytest.mark.slow


@pytest.fixture
def lighthouse():
    server = LighthouseServer("[::]:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=1000)
    yield f"http://localhost:{server.address().rpartition(':')[2]}"
    server.shutdown()


def results(lighthouse: str, *of_each: tuple[str, ...]) -> list[dict]:
    """What replicas print that get these arguments. Each has a torchrun of its own, which restarts it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2"]
    environment = ENVIRONMENT | {"TORCHFT_LIGHTHOUSE": lighthouse, "RUST_LOG": "error"}
    running = [
        subprocess.Popen(
            [*launcher, str(EXAMPLES / "torchft_ddp.py"), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for arguments in of_each
    ]  # fmt: skip
    try:
        ended = [replica.communicate(timeout=250) for replica in running]
    finally:
        for replica in running:
            replica.kill()
    found = []
    for replica, (out, err) in zip(running, ended, strict=True):
        assert replica.returncode == 0, out + err
        found += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return found


def test_a_killed_replica_comes_back(lighthouse):
    survivor, killed = results(lighthouse, ("--steps", "10"), ("--steps", "10", "--die-after", "4"))
    assert (survivor["restarts"], killed["restarts"]) == (0, 1)
    phases = [size for size, _ in itertools.groupby(survivor["sizes"])]
    assert phases[-3:] == [2, 1, 2]  # together, alone, and together again
    assert survivor["steps"] == killed["steps"] >= 14
    assert survivor["weights"] == killed["weights"]


def configured(comm: ringreduce.Communicator, port: int) -> list[list[float]]:
    """Configures a group twice, of all ranks and then of the last two, and reduces in each."""
    group, sums = ProcessGroupRingreduce(timedelta(seconds=30)), []
    for number, ranks in enumerate([range(comm.size), range(comm.size - 2, comm.size)]):
        if comm.rank not in ranks:
            continue
        group.configure(f"localhost:{port}/{number}", "me", ranks.index(comm.rank), len(ranks))
        x = torch.tensor([1.0, comm.rank])
        group.allreduce([x], AllreduceOptions()).wait()
        sums.append(x.tolist())
        block = torch.zeros(1)
        blocks = [torch.full((1,), 10.0 * other + comm.rank) for other in range(len(ranks))]
        group.reduce_scatter([block], [blocks], ReduceScatterOptions()).wait()
        sums.append(block.tolist())
    assert (group.getBackendName(), group.size()) == ("torchft-ringreduce", 2 if comm.rank else 3)
    group.abort()
    return sums


def test_a_group_is_configured_anew():
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    first, second, third = ringreduce.run(configured, 3, store.port, start="spawn")
    assert first == [[3.0, 3.0], [3.0]]
    assert second == [[3.0, 3.0], [33.0], [2.0, 3.0], [3.0]]
    assert third == [[3.0, 3.0], [63.0], [2.0, 3.0], [23.0]]
