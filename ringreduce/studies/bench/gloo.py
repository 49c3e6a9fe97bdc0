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
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING or __package__:
    from ringreduce.studies.bench import protocol
    from ringreduce.studies.bench.problem import FACTS, MESSAGES, Array, Problem, messages, partner, receives
else:
    import protocol
    from problem import FACTS, MESSAGES, Array, Problem, messages, partner, receives

# The older names call these, and take a microsecond more to warn that they are old.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
UNTIMED = ("reduce_scatter_v", "all_gather_v", "gather_v", "scatter_v", "scan", "exscan")
"""What needs equal blocks over Gloo, and what torch.distributed lacks."""
OPS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def prepare(
    problem: Problem, buffer: Array, group: dist.ProcessGroup | None = None
) -> tuple[Callable[[], Any], Array]:
    """Returns torch.distributed's call for the problem, and the array that holds the result."""
    if problem.op not in OPS:
        raise ValueError(f"torch.distributed has no op {problem.op}")
    whole, op = torch.from_numpy(buffer), getattr(dist.ReduceOp, OPS[problem.op])
    kind, rank, ranks = problem.collective, dist.get_rank(), dist.get_world_size()
    if kind in MESSAGES:
        room = torch.zeros_like(whole)
        ends = lambda to: dist.send(whole, to, group), lambda source: dist.recv(room, source, group)
        call = messages(kind, rank, partner(kind, rank, ranks), *ends)
        return call, room.numpy()[: buffer.size if receives(kind, rank, ranks) else 0]
    if kind in UNTIMED:
        raise ValueError(f"{kind} is not timed for torch.distributed")
    _, before, after = FACTS[problem.plain]
    blocks, is_root = problem.blocks(rank, ranks), rank == problem.root
    counts = [each.stop - each.start for each in blocks]
    result = torch.zeros_like(whole) if problem.separate else whole
    mine, out = whole[blocks[rank]], result[blocks[rank]]

    def blocks_at_root(tensor: torch.Tensor) -> list[torch.Tensor] | None:
        return list(torch.split(tensor, counts)) if is_root and kind in ("gather", "scatter") else None

    calls: dict[str, tuple[Any, ...]] = {
        "all_reduce": (dist.all_reduce, whole, op),
        "reduce_scatter": (reduce_scatter, out, whole, op),
        "all_gather": (all_gather, result, mine),
        "broadcast": (dist.broadcast, whole, problem.root),
        "reduce": (dist.reduce, whole, problem.root, op),
        "gather": (dist.gather, mine, blocks_at_root(result), problem.root),
        "scatter": (dist.scatter, out, blocks_at_root(whole), problem.root),
        "all_to_all": (dist.all_to_all_single, result, whole),
        "all_to_all_v": (dist.all_to_all_single, result, whole, counts, counts),
        "barrier": (dist.barrier,),
    }
    function, *given = calls[kind]
    if after == "on_root" and not is_root:
        out = whole[:0]
    elif after != "own_block":
        out = result if before in ("own_block", "exchanged") else whole
    return partial(function, *given, group=group), out.numpy()


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
