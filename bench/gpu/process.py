"""One rank of bench/gpu/collectives.py in its own process, which takes orders as lines of JSON.

    python3 bench/gpu/process.py ringreduce|symmetric RANK WORLD DEVICE PLACE

"prepare" captures a graph of several all-reduces, "run" replays it and answers with its seconds, and "drop" deletes it.
The kinds are the algorithms of ringreduce or, for torch's symmetric memory, one_shot and two_shot.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # use the package that is built in this checkout

from contestants import BLOCKS, LIMIT, arrays_of, graph_of, seconds_on

import ringreduce
from tests.gpu import cuda_library

Run = Callable[[], float]


class Ours:
    def __init__(self, rank: int, world: int, device: int, place: str) -> None:
        cuda_library.call("choose_device", device)
        self.comm = ringreduce.init(rank, world, place, timeout=LIMIT, max_blocks=BLOCKS)
        self.stream = cuda_library.Stream()

    def prepare(self, kind: str, count: int, calls: int) -> Run:
        arrays = arrays_of(self.comm, count)
        graph = graph_of(self.comm, arrays, self.stream, kind, calls)

        def run() -> float:
            self.comm.barrier()
            return seconds_on(self.stream, lambda: graph.launch(self.stream))

        run.keep = arrays  # type: ignore[attr-defined]
        return run


class SymmetricMemory:
    """torch's symmetric memory, whose kernels read the memory of their peers, like ours."""

    def __init__(self, rank: int, world: int, device: int, place: str) -> None:
        import torch
        import torch.distributed as dist

        torch.cuda.set_device(device)
        store = dist.FileStore(str(Path(tempfile.gettempdir()) / place.replace("/", "-")), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        self.torch, self.dist = torch, dist

    def prepare(self, kind: str, count: int, calls: int) -> Run:
        import torch.distributed._symmetric_memory as symmetric

        torch, group = self.torch, self.dist.group.WORLD.group_name
        array = symmetric.empty(count, dtype=torch.float32, device="cuda").zero_()
        symmetric.rendezvous(array, group)
        ops = {
            "one_shot": torch.ops.symm_mem.one_shot_all_reduce,
            "two_shot": torch.ops.symm_mem.two_shot_all_reduce_,
        }
        ops[kind](array, "sum", group)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                ops[kind](array, "sum", group)

        def run() -> float:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.dist.barrier()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return run


WAYS: dict[str, Any] = {"ringreduce": Ours, "symmetric": SymmetricMemory}


def answer(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def main() -> None:
    way, rank, world, device, place = sys.argv[1:]
    rank_of_ours = WAYS[way](int(rank), int(world), int(device), place)
    answer(seconds=0.0)
    prepared: dict[str, Run] = {}
    for line in sys.stdin:
        order = json.loads(line)
        seconds = 0.0
        if order["do"] == "prepare":
            prepared[order["key"]] = rank_of_ours.prepare(order["kind"], order["count"], order["calls"])
        elif order["do"] == "run":
            seconds = prepared[order["key"]]()
        else:
            del prepared[order["key"]]
        answer(seconds=seconds)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        answer(problem=f"{type(error).__name__}: {error}")
        sys.exit(1)
