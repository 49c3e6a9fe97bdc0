"""The table "Operations of a ProcessGroup" of docs/torch.md: each one is called on every path, with two ranks on the
emulated GPU, and the answer is its cell. Ranks are threads, and those of several hosts are processes.

python -m tests.frameworks.torch.emulated_cuda.served prints the table, and --write puts it into the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"

import torch
import torch.distributed as dist

import ringreduce.backend
from tests.frameworks.torch.gpu_groups import TESTS, emulated_cuda, on_emulated_gpu

WORLD, COUNT = 2, 300
PATHS = {
    "CPU": {},
    "kernels": {"RINGREDUCE_EMULATED_BLOCKS": "64"},
    "NCCL": {"RINGREDUCE_GPU_TRANSPORT": "nccl"},
}
HOSTS = "several hosts without NCCL"
OF_ALL = {"RINGREDUCE_NCCL_LIBRARY": str(TESTS / "libnccl_emulated.so"), "RINGREDUCE_EMULATED_BLOCKS": "64"}
GPU = torch.device("cuda:0")
TIMEOUT = timedelta(seconds=20)


class Rank:
    """One rank's process group, bound to the GPU on all paths but the CPU's, and its tensors."""

    def __init__(self, gpu: Any, store: Any, rank: int, path: str) -> None:
        self.gpu, self.store, self.rank, self.path = gpu, store, rank, path
        self.device = torch.device("cpu") if path == "CPU" else GPU
        self.peer = 1 - rank
        if path != "CPU":
            gpu.use_stream(gpu.new_stream())
        self.group = dist.ProcessGroup(store, rank, WORLD)
        self.backend = ringreduce.backend._load().create(store, rank, WORLD, TIMEOUT, [], None, True)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        for device in ("cpu", "cuda"):
            self.group._register_backend(torch.device(device), kind, self.backend)
        self.group._set_default_backend(kind)
        self.group._set_group_name(f"served/{path}")
        if path != "CPU":
            self.group.bound_device_id = GPU
            self.backend.eager_connect_single_device(GPU)

    def values(self, rank: int, count: int = COUNT) -> torch.Tensor:
        return torch.arange(count) % 5 + rank + 1.0

    def own(self, count: int = COUNT) -> torch.Tensor:
        return self.values(self.rank, count).to(self.device)

    def room(self, count: int = COUNT) -> torch.Tensor:
        return torch.zeros(count).to(self.device)

    def total(self, count: int = COUNT) -> torch.Tensor:
        return self.values(0, count) + self.values(1, count)

    def joined(self, count: int = COUNT) -> torch.Tensor:
        return torch.cat([self.values(0, count), self.values(1, count)])

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(WORLD)[self.rank]

    def is_equal(self, x: torch.Tensor, wanted: torch.Tensor) -> None:
        assert torch.equal(x.cpu(), wanted), (x.cpu(), wanted)


# --- the operations ----------------------------------------------------------------------------------------


def reduced(kind: Any, of_sum: float) -> Callable[[Rank], None]:
    def operation(on: Rank) -> None:
        x = on.own()
        options = dist.AllreduceOptions()
        options.reduceOp = kind
        on.group.allreduce([x], options).wait()
        on.is_equal(x, on.total() * of_sum)

    return operation


def allreduce_sparse(on: Rank) -> None:
    first, second = (torch.sparse_coo_tensor([[on.rank]], [1.0], (3,)).to(on.device) for _ in range(2))
    results = on.group.allreduce([first]).get_future().wait()
    work = on.group.allreduce([second])
    work.wait()
    results += [first, second, *work.result()]
    for x in results:
        assert x.device == on.device
        on.is_equal(x.cpu().to_dense(), torch.tensor([1.0, 1.0, 0.0]))


def allreduce_coalesced(on: Rank) -> None:
    xs = [on.own(5), on.own()]
    on.group.allreduce_coalesced(xs).wait()
    for x in xs:
        on.is_equal(x, on.total(len(x)))


def broadcast(on: Rank) -> None:
    x = on.own()
    on.group.broadcast(x, 1).wait()
    on.is_equal(x, on.values(1))


def reduce(on: Rank) -> None:
    x = on.own()
    on.group.reduce(x, 1).wait()
    on.is_equal(x, on.total() if on.rank == 1 else on.values(0))


def allgather(on: Rank, counts: tuple[int, int] = (COUNT, COUNT)) -> None:
    outs = [on.room(count) for count in counts]
    on.group.allgather([outs], [on.own(counts[on.rank])]).wait()
    for rank, out in enumerate(outs):
        on.is_equal(out, on.values(rank, counts[rank]))


def uneven_allgather(on: Rank) -> None:
    allgather(on, (5, 70))


def allgather_base(on: Rank) -> None:
    out = on.room(2 * COUNT)
    on.group._allgather_base(out, on.own()).wait()
    on.is_equal(out, on.joined())


def allgather_coalesced(on: Rank) -> None:
    lists = [[on.room(5), on.room()] for _ in range(WORLD)]
    on.group.allgather_coalesced(lists, [on.own(5), on.own()]).wait()
    for rank, outs in enumerate(lists):
        for out in outs:
            on.is_equal(out, on.values(rank, len(out)))


def allgather_into_tensor_coalesced(on: Rank) -> None:
    outs = [on.room(10), on.room(2 * COUNT)]
    on.group.allgather_into_tensor_coalesced(outs, [on.own(5), on.own()]).wait()
    for out in outs:
        on.is_equal(out, on.joined(len(out) // WORLD))


def reduce_scatter(on: Rank, counts: tuple[int, int] = (COUNT, COUNT)) -> None:
    out = on.room(counts[on.rank])
    on.group.reduce_scatter([out], [list(on.own(sum(counts)).split(list(counts)))]).wait()
    on.is_equal(out, on.total(sum(counts)).split(list(counts))[on.rank])


def uneven_reduce_scatter(on: Rank) -> None:
    reduce_scatter(on, (5, 70))


def reduce_scatter_base(on: Rank) -> None:
    out = on.room()
    on.group._reduce_scatter_base(out, on.own(2 * COUNT)).wait()
    on.is_equal(out, on.part(on.total(2 * COUNT)))


def reduce_scatter_tensor_coalesced(on: Rank) -> None:
    outs = [on.room(5), on.room()]
    on.group.reduce_scatter_tensor_coalesced(outs, [on.own(10), on.own(2 * COUNT)]).wait()
    for out in outs:
        on.is_equal(out, on.part(on.total(2 * len(out))))


def gather(on: Rank) -> None:
    outs = [on.room() for _ in range(WORLD)] if on.rank == 1 else []
    on.group.gather([outs] if outs else [], [on.own()], _rooted(dist.GatherOptions())).wait()
    for rank, out in enumerate(outs):
        on.is_equal(out, on.values(rank))


def scatter(on: Rank) -> None:
    out, parts = on.room(), list(on.own(2 * COUNT).chunk(WORLD))
    on.group.scatter([out], [parts] if on.rank == 1 else [], _rooted(dist.ScatterOptions())).wait()
    on.is_equal(out, on.part(on.values(1, 2 * COUNT)))


def _rooted(options: Any) -> Any:
    options.rootRank = 1
    return options


def alltoall(on: Rank) -> None:
    outs = [on.room() for _ in range(WORLD)]
    on.group.alltoall(outs, list(on.own(2 * COUNT).chunk(WORLD))).wait()
    for rank, out in enumerate(outs):
        on.is_equal(out, on.part(on.values(rank, 2 * COUNT)))


def alltoall_base(on: Rank) -> None:
    out = on.room(2 * COUNT)
    on.group.alltoall_base(out, on.own(2 * COUNT), [], []).wait()
    on.is_equal(out, torch.cat([on.part(on.values(rank, 2 * COUNT)) for rank in range(WORLD)]))


def uneven_alltoall_base(on: Rank) -> None:
    sizes = [[5, 70], [9, 3]]
    came = [sizes[rank][on.rank] for rank in range(WORLD)]
    out = on.room(sum(came))
    on.group.alltoall_base(out, on.own(sum(sizes[on.rank])), came, sizes[on.rank]).wait()
    parts = [on.values(r, sum(sizes[r])).split(sizes[r])[on.rank] for r in range(WORLD)]
    on.is_equal(out, torch.cat(parts))


def barrier(on: Rank) -> None:
    on.group.barrier().wait()


def monitored_barrier(on: Rank) -> None:
    on.group.monitored_barrier(TIMEOUT)


def messages(on: Rank, tag: int = 0) -> None:
    came = on.room()
    for turn in (0, 1):  # over NCCL, two ranks that both receive first wait for each other
        if turn == on.rank:
            on.group.send([on.own()], on.peer, tag).wait()
        else:
            on.group.recv([came], on.peer, tag).wait()
    on.is_equal(came, on.values(on.peer))


def tagged_messages(on: Rank) -> None:
    messages(on, 7)


def recv_anysource(on: Rank, tag: int = 0) -> None:
    came = on.room()
    received = on.group.recv_anysource([came], tag)
    on.group.send([on.own()], on.peer, tag).wait()
    received.wait()
    on.is_equal(came, on.values(on.peer))


def tagged_recv_anysource(on: Rank) -> None:
    recv_anysource(on, 7)


def coalesced_messages(on: Rank) -> None:
    came = on.room(200_000)
    on.group._start_coalescing(on.device)
    on.group.send([on.own(200_000)], on.peer, 0)
    on.group.recv([came], on.peer, 0)
    on.group._end_coalescing(on.device).wait()
    on.is_equal(came, on.values(on.peer, 200_000))


def coalesced_collectives(on: Rank) -> None:
    xs = [on.own(5), on.own()]
    on.group._start_coalescing(on.device)
    for x in xs:
        on.group.allreduce([x])
    on.group._end_coalescing(on.device).wait()
    for x in xs:
        on.is_equal(x, on.total(len(x)))


def future(on: Rank) -> None:
    x = on.own()
    on.group.allreduce([x]).get_future().wait()
    on.is_equal(x, on.total())


def split_group(on: Rank) -> None:
    if on.path == "CPU":
        on.group.bound_device_id = torch.device("cpu:0")
    part = on.group.split_group([0, 1], TIMEOUT, None, f"split/{on.path}", None)
    x = on.own()
    part.allreduce([x]).wait()
    on.is_equal(x, on.total())


def shrink(on: Rank) -> None:
    part = on.backend.shrink([1]) if on.rank == 0 else None
    if part is not None:
        x = on.own()
        part.allreduce([x]).wait()
        on.is_equal(x, on.values(0))


def allocate_tensor(on: Rank) -> None:
    assert on.backend.allocate_tensor(5, dtype=torch.float32, device=on.device).device == on.device


OPERATIONS: dict[str, Callable[[Rank], None]] = {
    "`allreduce`": reduced(dist.ReduceOp.SUM, 1),
    "`allreduce`, AVG": reduced(dist.ReduceOp.AVG, 0.5),
    "`allreduce`, PREMUL_SUM": reduced(dist._make_nccl_premul_sum(0.5), 0.5),
    "`allreduce` of a sparse tensor": allreduce_sparse,
    "`allreduce_coalesced`": allreduce_coalesced,
    "`broadcast`": broadcast,
    "`reduce`": reduce,
    "`allgather`": allgather,
    "`allgather` of uneven tensors": uneven_allgather,
    "`_allgather_base`": allgather_base,
    "`allgather_coalesced`": allgather_coalesced,
    "`allgather_into_tensor_coalesced`": allgather_into_tensor_coalesced,
    "`reduce_scatter`": reduce_scatter,
    "`reduce_scatter` of uneven tensors": uneven_reduce_scatter,
    "`_reduce_scatter_base`": reduce_scatter_base,
    "`reduce_scatter_tensor_coalesced`": reduce_scatter_tensor_coalesced,
    "`gather`": gather,
    "`scatter`": scatter,
    "`alltoall`": alltoall,
    "`alltoall_base`": alltoall_base,
    "`alltoall_base` with uneven splits": uneven_alltoall_base,
    "`barrier`": barrier,
    "`monitored_barrier`": monitored_barrier,
    "`send`, `recv`": messages,
    "`send`, `recv` with a tag": tagged_messages,
    "`recv_anysource`": recv_anysource,
    "`recv_anysource` with a tag": tagged_recv_anysource,
    "coalesced `send` and `recv`": coalesced_messages,
    "coalesced collectives": coalesced_collectives,
    "`Work.get_future`": future,
    "`split_group`": split_group,
    "`shrink`": shrink,
    "`allocate_tensor`": allocate_tensor,
}
# What CUDA tensors' calls do on the host, on these paths.
ON_HOST = {
    **dict.fromkeys(["`barrier`", "`monitored_barrier`"], ("on the host", ["kernels", "NCCL", HOSTS])),
    **dict.fromkeys(
        ["`send`, `recv`", "`recv_anysource`", "coalesced `send` and `recv`"],
        ("through CPU memory", [HOSTS]),
    ),
    **dict.fromkeys(
        ["`allreduce` of a sparse tensor", "`send`, `recv` with a tag", "`recv_anysource` with a tag"],
        ("through CPU memory", ["kernels", "NCCL", HOSTS]),
    ),
}


# --- the table -----------------------------------------------------------------------------------------------


def answer_of_rank(operation: Callable[[Rank], None], *where: Any) -> str:
    """ "yes", or why not. Throws what no caller should see."""
    try:
        on = Rank(*where)
        operation(on)
        on.backend.shutdown()
        return "yes"
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]


def answer(gpu: Any, operation: Callable[[Rank], None], path: str) -> str:
    """That of all ranks."""
    store = dist.HashStore()
    with ThreadPoolExecutor(WORLD) as pool:
        ranks = [pool.submit(answer_of_rank, operation, gpu, store, rank, path) for rank in range(WORLD)]
    found = {rank.result() for rank in ranks}
    assert len(found) == 1, found
    return found.pop()


def _answers_of_a_host(gpu: Any) -> dict[str, str]:
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    return {
        name: answer_of_rank(operation, gpu, dist.PrefixStore(name, store), rank, HOSTS)
        for name, operation in OPERATIONS.items()
    }


def answers_of_hosts() -> dict[str, str]:
    os.environ["RINGREDUCE_NCCL_LIBRARY"] = "/nowhere"
    of_ranks = on_emulated_gpu(WORLD, _answers_of_a_host, hosts="ab")
    assert of_ranks[0] == of_ranks[1], of_ranks
    return dict(of_ranks[0])


def answers(gpu: Any, path: str) -> dict[str, str]:
    os.environ.pop("RINGREDUCE_GPU_TRANSPORT", None)
    os.environ.update({**OF_ALL, **PATHS[path]})
    return {name: answer(gpu, operation, path) for name, operation in OPERATIONS.items()}


def table() -> str:
    """In Markdown. Reasons are numbered."""
    of_hosts = answers_of_hosts()  # first: nothing of a GPU survives the fork
    gpu = emulated_cuda()
    of_paths = {**{path: answers(gpu, path) for path in PATHS}, HOSTS: of_hosts}
    reasons: list[str] = []
    cells: dict[str, list[str]] = {name: [] for name in OPERATIONS}
    for path, found_on_path in of_paths.items():
        for name, found in found_on_path.items():
            if found != "yes":
                if found not in reasons:
                    reasons.append(found)
                found = f"no ({reasons.index(found) + 1})"
            elif path in ON_HOST.get(name, ("", []))[1]:
                found = ON_HOST[name][0]
            cells[name].append(found)
    lines = [f"| | {' | '.join(of_paths)} |", "|---|" + "---|" * len(of_paths)]
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]
    return "\n".join([*lines, "", *(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))])


PAGE = Path(__file__).resolve().parents[4] / "docs" / "torch.md"
BEGIN, END = "<!-- served -->\n", "<!-- end of served -->\n"


if __name__ == "__main__":
    made = table()
    print(made)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    now, _, after = rest.partition(END)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(f"{before}{BEGIN}{made}\n{END}{after}")
    elif sys.argv[1:] == ["--compare"]:
        sys.exit(now.strip() != made)
