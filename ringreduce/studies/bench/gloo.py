"""Times the collectives of torch.distributed, by default with Gloo, by the rules of protocol.py.

As a program, it starts its own ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING or __package__:
    from ringreduce.studies.bench import protocol
    from ringreduce.studies.bench.problem import MESSAGES, Array, Problem, messages, partner, receives
else:
    import protocol
    from problem import MESSAGES, Array, Problem, messages, partner, receives

# The older names call these, and take a microsecond more to warn that they are old.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
OPS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def prepare(
    problem: Problem, buffer: Array, group: dist.ProcessGroup | None = None
) -> tuple[Callable[[], Any], Array]:
    """Returns torch.distributed's call for the problem, and the array that holds the result."""
    if problem.op not in OPS:
        raise ValueError(f"torch.distributed has no op {problem.op}")
    whole, op = torch.from_numpy(buffer), getattr(dist.ReduceOp, OPS[problem.op])
    kind, rank, ranks = problem.collective, dist.get_rank(), dist.get_world_size()
    if kind == "barrier":
        return lambda: dist.barrier(group), buffer
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, op, group), buffer
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, problem.root, group), buffer
    if kind in MESSAGES:
        room = torch.zeros_like(whole)
        ends = lambda to: dist.send(whole, to, group), lambda source: dist.recv(room, source, group)
        call = messages(kind, rank, partner(kind, rank, ranks), *ends)
        return call, room.numpy()[: buffer.size if receives(kind, rank, ranks) else 0]
    block = whole.numel() // ranks
    mine = whole[rank * block :][:block]
    if kind == "reduce_scatter":
        out = mine if problem.in_place else torch.zeros_like(mine)
        return lambda: reduce_scatter(out, whole, op, group), out.numpy()
    if kind == "all_gather":
        out = whole if problem.in_place else torch.zeros_like(whole)
        return lambda: all_gather(out, mine, group), out.numpy()
    raise ValueError(f"{kind} is not timed for torch.distributed")


def maximum(values: Array) -> Array:
    tensor = torch.from_numpy(values.copy())
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    result: Array = tensor.numpy()
    return result


def join(rank: int, ranks: int, store: str, backend: str = "gloo", interface: str = "lo") -> None:
    """Creates the process group. The ranks find each other through the file ``store``, which must not exist yet."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # about deprecated names
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)


def rank_main(rank: int, options: Namespace, store: str) -> None:
    join(rank, options.ranks, store, options.backend)
    protocol.measure_sizes(
        protocol.Library(
            options.library or options.backend, rank, options.ranks, dist.barrier, maximum, prepare
        ),
        options,
    )
    dist.destroy_process_group()


def main() -> None:
    options = protocol.parser()
    options.add_argument("--backend", default="gloo", help="backend of torch.distributed (gloo)")
    chosen = options.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=rank_main, args=(rank, chosen, f"{folder}/store"), daemon=True)
            for rank in range(chosen.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
