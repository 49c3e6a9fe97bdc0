"""Tensors in memory that other ranks read in place: which ones lie there, and that nothing else differs."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from .groups import on_process_group  # noqa: E402

K, M = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TORCH_MEMORY", "shared")


def is_shared(tensor):
    with open("/proc/self/maps") as maps:
        for line in maps:
            places, *_, name = line.split(maxsplit=5)
            start, end = (int(place, 16) for place in places.split("-"))
            if start <= tensor.data_ptr() < end:
                return "memfd:ringreduce" in name
    return False


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def shared_bytes():
    """Of this process and its peers, in memory now."""
    with open("/proc/self/smaps_rollup") as text:
        return sum(int(line.split()[1]) * K for line in text if line.startswith("Pss_Shmem:"))


def alone(function, *args):
    return on_process_group(1, function, *args)[0]


def test_large_tensors_are_shared_from_the_beginning_of_a_group_on(monkeypatch):
    def made():
        small, large = torch.ones(1000), torch.ones(64 * K)
        grown = torch.ones(10)
        grown.resize_(64 * K)
        kinds = [
            small,
            large,
            grown,
            large.clone(),
            large * 2,
            torch.zeros(M, dtype=torch.uint8),
            large.bfloat16(),
        ]
        layer = torch.nn.Linear(512, 512)
        layer(torch.ones(2, 512)).sum().backward()
        return [is_shared(x) for x in (*kinds, layer.weight, layer.weight.grad)]

    before = torch.ones(64 * K)
    assert not is_shared(before)
    assert alone(made) == [False, *[True] * 5, False, True, True]
    assert not is_shared(torch.ones(64 * K))  # here nobody has made a group
    monkeypatch.delenv("RINGREDUCE_TORCH_MEMORY")
    assert alone(made) == [False] * 9


def test_a_value_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TORCH_MEMORY", "public")
    with pytest.raises(Exception, match="RINGREDUCE_TORCH_MEMORY must be shared or private, not 'public'"):
        alone(lambda: None)


def test_reductions_of_ordinary_tensors_are_right():
    def reduced():
        import torch.distributed as dist

        found = []
        for size in (64 * K - 1, 64 * K, 3 * M, 5 * M + 3):
            x = torch.arange(size, dtype=torch.float32) % 1000 + dist.get_rank()
            view = torch.zeros(size + 100)[50:-50]
            view.copy_(x)
            dist.all_reduce(x)
            dist.all_reduce(view)
            right = 2 * (torch.arange(size, dtype=torch.float32) % 1000) + 1
            found.append(bool((x == right).all() and (view == right).all()))
        return found

    assert on_process_group(2, reduced) == [[True] * 4] * 2


def test_no_two_tensors_overlap_and_memory_and_descriptors_are_given_back():
    def churned():
        chance, live, most = random.Random(1), {}, 0
        for step in range(3000):
            if live and (len(live) > 60 or chance.random() < 0.45):
                number, tensor = live.popitem() if chance.random() < 0.5 else (next(iter(live)), None)
                tensor = live.pop(number) if tensor is None else tensor
                assert (tensor == number).all(), number
            else:
                live[step] = torch.full(
                    (chance.choice([64 * K, 70_000, 200 * K, 500 * K]),), step, dtype=torch.int32
                )
            most = max(most, descriptors())
        assert all((tensor == number).all() for number, tensor in live.items())
        held = shared_bytes()
        live.clear()
        gc.collect()
        return most, descriptors(), held, shared_bytes()

    most, after, held, left = alone(churned)
    assert most - after < 20
    assert held > 40 * M and left < 90 * M
    assert left < held


def test_a_forked_process_has_a_copy_of_its_own():
    def forked():
        kept, dropped = torch.full((300 * K,), 1.0), torch.full((300 * K,), 2.0)
        asks, answers = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(asks[0], 1)  # the parent has changed and freed its own by now
                good = bool((kept == 1).all() and (dropped == 2).all()) and not is_shared(kept)
                kept += 5
                new = torch.full((300 * K,), 9.0)
                del dropped
                good = good and bool((kept == 6).all() and (new == 9).all())
                os.write(answers[1], b"y" if good else b"n")
                code = 0
            finally:
                os._exit(code)
        kept.fill_(3)
        del dropped
        other = torch.full((300 * K,), 4.0)
        os.write(asks[1], b"x")
        said = os.read(answers[0], 1)
        os.waitpid(child, 0)
        return said, bool((kept == 3).all() and (other == 4).all()), is_shared(kept)

    assert alone(forked) == (b"y", True, True)


def test_a_forked_process_that_dies_holds_nothing_up():
    """The parent waits for the copy, but not for a child that will never make it."""
    program = """
import os, resource, torch, torch.distributed as dist
dist.init_process_group("ringreduce", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(64 << 20)
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(x.sum().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{float(64 << 20)}\n", done.stderr


def test_workers_of_a_data_loader_read_what_was_there_when_they_began():
    def loaded():
        data = torch.arange(400 * K, dtype=torch.float32)
        dataset = torch.utils.data.TensorDataset(data)
        batches = iter(torch.utils.data.DataLoader(dataset, batch_size=100 * K, num_workers=2))
        data.fill_(-1)
        return [int(batch[0]) for (batch,) in batches]

    assert alone(loaded) == [0, 100 * K, 200 * K, 300 * K]
