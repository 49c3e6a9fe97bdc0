"""Times Gloo's collectives through torch.distributed, by the rules of protocol.py. Starts its own ranks."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from protocol import Array, Library, arguments, measure_sizes


def prepare(collective: str, buffer: Array) -> tuple[Callable[[], Any], Array]:
    whole = torch.from_numpy(buffer)
    if collective == "all_reduce":
        return lambda: dist.all_reduce(whole), buffer
    block = whole.numel() // dist.get_world_size()
    if collective == "reduce_scatter":
        out = torch.empty(block)
        return lambda: dist.reduce_scatter_tensor(out, whole), out.numpy()
    mine = whole[dist.get_rank() * block :][:block]
    return lambda: dist.all_gather_into_tensor(whole, mine), buffer


def maximum(values: Array) -> Array:
    tensor = torch.from_numpy(values.copy())
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.numpy()


def rank_main(rank: int, options: Namespace, store: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    library = Library("gloo", rank, options.ranks, dist.barrier, maximum, prepare)
    measure_sizes(library, options)
    dist.destroy_process_group()


def main() -> None:
    options = arguments()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=rank_main, args=(rank, options, f"{folder}/store"), daemon=True)
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
