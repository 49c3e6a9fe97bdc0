"""Ray Train trains on ringreduce, also after a worker is killed, and ray.util.collective has it as a backend."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.frameworks.installed.programs import output, run

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

import numpy as np
import ray
import ray.experimental.collective as experimental
import ray.util.collective as collective
import torch
from ray.experimental.internal_kv import _internal_kv_list, _internal_kv_put
from ray.util.collective.types import ReduceOp

import ringreduce.ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
STEPS = "8"


def trained(workers: int, folder: Path, *arguments: str) -> dict:
    more = ("--steps", STEPS, "--workers", str(workers), "--folder", str(folder))
    found = run("ray_train.py", *more, *arguments, limit=500)
    assert (found["backend"], found["world"], len(found["losses"])) == ("ringreduce", workers, int(STEPS))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> list[float]:
    """The losses of one worker over Gloo."""
    folder = str(tmp_path_factory.mktemp("alone"))
    more = ("--workers", "1", "--backend", "gloo")
    return run("ray_train.py", "--steps", STEPS, "--folder", folder, *more, limit=500)["losses"]


@pytest.mark.parametrize("workers", [2, 4])
def test_losses_are_those_of_one_worker(alone, tmp_path, workers):
    found = trained(workers, tmp_path)
    assert found["losses"] == pytest.approx(alone, rel=1e-4)
    assert not found["resumed"]


def test_training_goes_on_after_a_worker_is_killed(alone, tmp_path):
    found = trained(2, tmp_path, "--die-at", "6")
    assert found["losses"] == pytest.approx(alone, rel=1e-4)
    assert found["resumed"]


# --- ray.util.collective ---------------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, rank: int, size: int, timeout: float = 60) -> None:
        self.rank, self.size = rank, size
        ringreduce.ray.register(timeout)

    def join(self, name: str) -> int:
        collective.init_collective_group(self.size, self.rank, "ringreduce", name)
        return os.getpid()

    def leave(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def calls(self, name: str, kind: str) -> dict:
        """Makes every call, with arrays of a kind, and returns the results as lists."""
        rank, size, results = self.rank, self.size, {}

        def array(*shape: int) -> np.ndarray | torch.Tensor:
            x = np.arange(np.prod(shape), dtype="float32").reshape(shape) + 100 * rank
            return x if kind == "numpy" else torch.from_numpy(x)

        for op in ReduceOp:
            x = array(2, 3)
            collective.allreduce(x, name, op)
            results[op.name] = x.tolist()
        x = array(3)
        collective.reduce(x, size - 1, name)
        results["reduce"] = x.tolist()
        x = array(3)
        collective.broadcast(x, 1, name)
        results["broadcast"] = x.tolist()
        parts = [array(2, 2) * 0 for _ in range(size)]
        collective.allgather(parts, array(2, 2), name)
        results["allgather"] = [part.tolist() for part in parts]
        x, parts = array(2, 2), [array(2, 2) + 1000 * number for number in range(size)]
        collective.reducescatter(x, parts, name)
        results["reducescatter"] = x.tolist()
        results["kept"] = [part.tolist() for part in parts]
        x = array(3)
        if rank == 0:
            collective.send(x, size - 1, name)
        elif rank == size - 1:
            collective.recv(x, 0, name)
        results["message"] = x.tolist()
        collective.barrier(name)
        return results

    def refused(self, name: str) -> list[str]:
        x, said = np.zeros(2, "float32"), []
        for parts in ([x, torch.zeros(2)], [x, np.zeros(2, "float64")], [x, np.zeros(3, "float32")]):
            try:
                collective.allgather(parts, x, name)
            except (TypeError, ValueError) as error:
                said.append(f"{type(error).__name__}: {error}")
        collective.allreduce(x, name)  # the group can still be used
        return said

    def add(self, name: str) -> list[float]:
        x = np.ones(1)
        collective.allreduce(x, name)
        return x.tolist()


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    yield
    ray.shutdown()


def actors(size: int, timeout: float = 60) -> list:
    return [Actor.remote(rank, size, timeout) for rank in range(size)]


def each(group: list, call: str, *arguments: object) -> list:
    return ray.get([getattr(actor, call).remote(*arguments) for actor in group], timeout=100)


def declare(group: list, backend: str, name: str) -> None:
    """Has the actors join when they first use the group."""
    collective.create_collective_group(group, len(group), [*range(len(group))], backend, name)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_call(cluster, size, kind):
    group, ranks = actors(size), range(size)
    each(group, "join", f"{kind}{size}")
    found = each(group, "calls", f"{kind}{size}", kind)
    every = np.stack([np.arange(6, dtype="float32").reshape(2, 3) + 100 * rank for rank in ranks])
    three, four = [0, 1, 2], np.arange(4.0).reshape(2, 2)
    combined = {"SUM": every.sum(0), "PRODUCT": every.prod(0), "MIN": every.min(0), "MAX": every.max(0)}
    total = 100 * sum(ranks)
    for rank, results in enumerate(found):
        for op, expected in combined.items():
            assert results[op] == expected.tolist()
        own = [x + 100 * rank for x in three]
        assert results["reduce"] == ([size * x + total for x in three] if rank == size - 1 else own)
        assert results["broadcast"] == [x + 100 for x in three]
        assert results["allgather"] == [(four + 100 * other).tolist() for other in ranks]
        assert results["reducescatter"] == (size * (four + 1000 * rank) + total).tolist()
        assert results["kept"] == [(four + 100 * rank + 1000 * other).tolist() for other in ranks]
        assert results["message"] == (three if rank == size - 1 else own)


def test_invalid_tensors_are_refused_by_number(cluster):
    group = actors(2)
    each(group, "join", "refused")
    for said in each(group, "refused", "refused"):
        assert said == [
            "TypeError: tensor_list[1] is a Tensor of torch.float32, but tensor is a ndarray of float32",
            "TypeError: tensor_list[1] is a ndarray of float64, but tensor is a ndarray of float32",
            "ValueError: tensor_list[1] has the shape (3,), but tensor has (2,)",
        ]


def test_a_killed_actor_is_named_and_its_group_can_be_made_anew(cluster):
    first, second = actors(2)
    pid = each([first, second], "join", "again")[1]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ringreduce.PeerLost, match="rank 1 died"):
        ray.get(first.add.remote("again"), timeout=60)
    ray.get(first.leave.remote("again"), timeout=60)
    group = [first, Actor.remote(1, 2)]
    each(group, "join", "again")
    assert each(group, "add", "again") == [[2.0], [2.0]]


def test_a_group_can_be_left_and_made_again(cluster):
    group = actors(2)
    for _ in range(3):
        each(group, "join", "in turn")
        assert each(group, "add", "in turn") == [[2.0], [2.0]]
        each(group, "leave", "in turn")
    assert not [key for key in _internal_kv_list("in turn", namespace=b"ringreduce")]


@pytest.mark.parametrize("create", [declare, experimental.create_collective_group])
def test_the_driver_can_make_a_group(cluster, create):
    ringreduce.ray.register()
    group = actors(2)
    create(group, backend="ringreduce", name=create.__name__)
    assert each(group, "add", create.__name__) == [[2.0], [2.0]]


def test_what_a_dead_rank_0_left_behind_is_passed_over(cluster):
    """Also by a rank that came first, and has called at the old address."""
    with socket.create_server(("127.0.0.1", 0)) as old:
        place = f"secret|127.0.0.1:{old.getsockname()[1]}".encode()
        _internal_kv_put("stale/ringreduce-meeting", place, overwrite=True, namespace=b"ringreduce")
        first, second = actors(2)
        early = second.join.remote("stale")
        old.settimeout(60)
        old.accept()[0].close()
    ray.get([first.join.remote("stale"), early], timeout=60)
    assert each([first, second], "add", "stale") == [[2.0], [2.0]]


def test_a_rank_that_does_not_come_is_named(cluster):
    first, _ = actors(2, timeout=1)
    with pytest.raises(
        ringreduce.TimeoutError, match=r"'lonely' could not .* 1 s: .*waiting for ranks \[1\]"
    ):
        ray.get(first.join.remote("lonely"), timeout=60)


def test_example_adds_in_all_actors():
    assert json.loads(output("ray_collectives.py", "--actors", "3").strip()) == [[6.0] * 4] * 3
