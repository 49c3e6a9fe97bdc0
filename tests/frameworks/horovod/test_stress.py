"""Many operations in random orders, from several threads, on overlapping process sets."""

from __future__ import annotations

import random
import threading

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from tests.conftest import slowly  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks  # noqa: E402


def calls(round_, number, process_set):
    """Submits one operation. Returns its handle and the expected first value."""
    kind = random.Random(number + 100 * (round_ // 3)).choice(["sum", "max", "gather", "broadcast", "group"])
    name, ranks, rank = f"n{number}", process_set.ranks, hvd.rank()
    x = torch.full((1 + (number + round_ // 3) % 40, 3), float(rank + number))
    if kind == "sum":
        return hvd.allreduce_async(x, op=hvd.Sum, name=name, process_set=process_set), float(
            sum(ranks) + number * len(ranks)
        )
    if kind == "max":
        return hvd.allreduce_async(x, op=hvd.Max, name=name, process_set=process_set), float(
            max(ranks) + number
        )
    if kind == "gather":
        return hvd.allgather_async(x, name=name, process_set=process_set), float(ranks[0] + number)
    if kind == "broadcast":
        root = ranks[number % len(ranks)]
        return hvd.broadcast_async(x, root, name=name, process_set=process_set), float(root + number)
    handle = hvd.grouped_allreduce_async([x, x[:1]], op=hvd.Min, name=name, process_set=process_set)
    return handle, float(ranks[0] + number)


def storm(seed, rounds, threads_of_rank):
    sets = [hvd.global_process_set, hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])]
    sets = [one for one in sets if one.included()]
    wrong = []

    def work(thread):
        order = random.Random(f"{seed} {hvd.rank()} {thread}")
        for round_ in range(rounds):
            numbers = [(n, one) for one in sets for n in range(thread * 100, thread * 100 + 25)]
            order.shuffle(numbers)
            handles = []
            for number, one in numbers:
                handles.append(calls(round_, number, one))
                if order.random() < 0.1:
                    hvd.poll(handles[0][0])
            order.shuffle(handles)
            for handle, expected in handles:
                found = hvd.synchronize(handle)
                found = found[0] if isinstance(found, list) else found
                if found.flatten()[0].item() != expected:
                    wrong.append((round_, found, expected))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(threads_of_rank)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hvd.barrier()
    return wrong


@pytest.mark.parametrize("size", [(1024, 2, 6), *slowly((20, 2, 30), (0, 3, 10))], ids=str)
def test_any_order_from_any_thread(size):
    """The kind and shape of a name change every three rounds; a small cache forgets names all the time."""
    capacity, threads, rounds = size
    variables = {"HOROVOD_CACHE_CAPACITY": str(capacity), "sets": "dynamic"}
    assert on_ranks(3, storm, 7, rounds, threads, **variables) == [[]] * 3
