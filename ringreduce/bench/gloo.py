"""Times the collectives of torch.distributed, Gloo's unless told otherwise, by the rules of protocol.py.

Starts its own ranks.
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
    from ringreduce.bench.protocol import Array, Library, Problem, measure_sizes, parser
else:
    from protocol import Array, Library, Problem, measure_sizes, parser

OPS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def prepare(problem: Problem, buffer: Array) -> tuple[Callable[[], Any], Array]:
    if problem.op not in OPS:
        raise ValueError(f"Gloo has no {problem.op}")
    whole, op = torch.from_numpy(buffer), getattr(dist.ReduceOp, OPS[problem.op])
    if problem.collective == "all_reduce":
        return lambda: dist.all_reduce(whole, op), buffer
    if problem.collective == "broadcast":
        return lambda: dist.broadcast(whole, 0), buffer
    block = whole.numel() // dist.get_world_size()
    mine = whole[dist.get_rank() * block :][:block]
    if problem.collective == "reduce_scatter":
        out = torch.empty_like(mine)
        return lambda: dist.reduce_scatter_tensor(out, whole, op), out.numpy()
    if problem.collective == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, mine), buffer
    raise ValueError(f"Gloo is not timed in {problem.collective}")


def maximum(values: Array) -> Array:
    tensor = torch.from_numpy(values.copy())
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    result: Array = tensor.numpy()
    return result


def join(rank: int, ranks: int, store: str, backend: str = "gloo", interface: str = "lo") -> None:
    """Ranks find each other through a file that is not there yet."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # of names that come and go
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)


def rank_main(rank: int, options: Namespace, store: str) -> None:
    join(rank, options.ranks, store, options.backend)
    measure_sizes(
        Library(options.library or options.backend, rank, options.ranks, dist.barrier, maximum, prepare),
        options,
    )
    dist.destroy_process_group()


def main() -> None:
    options = parser()
    options.add_argument("--backend", default="gloo", help="of torch.distributed")
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
