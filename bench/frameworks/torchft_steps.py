"""Compares the exchange of gradients under torchft's manager over ringreduce and over Gloo.

    make .venv-frameworks/.ready
    .venv-frameworks/bin/python -m bench.frameworks.torchft_steps

Every process is a replica, with a manager for each process group, and uses them in turn. A step is a quorum, an
all-reduce of each gradient of torch_backend.py's model, and the commit, without computing anything.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import ringreduce
from bench.frameworks.torch_ranks import LAYERS, PARAMETERS, WIDTH
from bench.turns import KEEP_FREED_MEMORY, chain
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown
from ringreduce.torchft import ProcessGroupRingreduce

GROUPS = {"ringreduce": ProcessGroupRingreduce, "gloo": ProcessGroupGloo}


def step(manager: Manager, gradients: list[torch.Tensor]) -> None:
    manager.start_quorum()
    for work in [manager.allreduce(gradient) for gradient in gradients]:
        work.wait()
    assert manager.should_commit()


def replica(comm: Any, options: Namespace) -> list[list[float]]:
    """Returns, for each round, the seconds of a step over each process group."""
    gradients = [torch.ones_like(p) for p in chain(WIDTH, LAYERS).parameters()]
    managers, kept = {}, []
    for name, group in GROUPS.items():
        server = LighthouseServer("[::]:0", min_replicas=comm.size) if comm.rank == 0 else None
        port = comm.broadcast_object(server and server.address().rpartition(":")[2])
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        managers[name] = Manager(
            pg=group(), load_state_dict=lambda _: None, state_dict=lambda: {}, min_replica_size=comm.size,
            rank=0, world_size=1, store_addr="localhost", store_port=store.port, hostname="localhost",
            lighthouse_addr=f"http://localhost:{port}", replica_id=f"{name}{comm.rank}_",
        )  # fmt: skip
        kept += [server, store]
    rounds = []
    for number in range(options.rounds + 1):
        times = {}
        for name in list(GROUPS)[:: 1 if number % 2 else -1]:
            comm.barrier()
            start = perf_counter()
            for _ in range(options.steps):
                step(managers[name], gradients)
            times[name] = (perf_counter() - start) / options.steps
        rounds.append([times[name] for name in GROUPS])
    for manager in managers.values():
        manager.shutdown(wait=False)
    return rounds[1:]  # the first is warm-up


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="steps in each round (3)")
    options = parser.parse_args()
    os.environ.update(KEEP_FREED_MEMORY, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", RUST_LOG="error")
    before = _engine.probe_exchange()
    slowest = np.max(ringreduce.run(replica, options.ranks, options, start="spawn"), axis=0)
    mode = mode_of(before, _engine.probe_exchange())
    ratios = np.quantile(slowest[:, 1] / slowest[:, 0], [0.25, 0.5, 0.75])
    rows = [["", *GROUPS, "of Gloo's rate", "quartiles"]]
    cells = [f"{1e3 * one:.0f} ms" for one in np.median(slowest, axis=0)]
    rows.append(["a step", *cells, f"{ratios[1]:.2f} x", f"{ratios[0]:.2f} to {ratios[2]:.2f}"])
    print(f"{PARAMETERS / 1e6:.1f} M parameters, {options.ranks} replicas, {mode} mode\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
