"""Compares training steps with DeepSpeed's ZeRO 3 and with FSDP2 over ringreduce and over Gloo.

    make .venv-frameworks/.ready
    .venv-frameworks/bin/python -m bench.frameworks.sharded_steps
    .venv-frameworks/bin/python -m bench.frameworks.sharded_steps --ranks 4 --launches 2

DeepSpeed has one process group for a job. So each launch starts the ranks under torchrun, once for each backend, in
turn. The model is that of torch_backend.py, with one sample for each rank and step.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import numpy as np

from bench.frameworks.decoding import BACKENDS, GLOO, OURS
from bench.turns import KEEP_FREED_MEMORY, chain, in_turns, span, step_of, under_torchrun
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown

ZERO, FSDP = KINDS = ("DeepSpeed ZeRO 3", "FSDP2")
STEPS = 4  # that are timed together


# --- a rank ----------------------------------------------------------------------------------------------------


def zero_step() -> Callable[[], None]:
    import deepspeed
    import torch

    from bench.frameworks.torch_ranks import LAYERS, WIDTH

    model = chain(WIDTH, LAYERS)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3},
            "zero_allow_untested_optimizer": True,
        },
    )
    x = torch.randn(1, WIDTH)

    def step() -> None:
        engine.backward(engine(x).square().mean())
        engine.step()

    return step


def fsdp_step() -> Callable[[], None]:
    import torch.distributed as dist

    from bench.frameworks.torch_ranks import WIDTH, fsdp2

    return step_of(fsdp2(dist.group.WORLD), 1, WIDTH)


def rank_main(backend: str, rounds: int) -> None:
    """Prints the seconds for a step of each kind: the median of the slowest rank's times."""
    import deepspeed
    import torch
    import torch.distributed as dist

    deepspeed.init_distributed(dist_backend=backend)
    found = {}
    for kind, make in ((ZERO, zero_step), (FSDP, fsdp_step)):
        slowest = torch.tensor(in_turns({kind: make()}, rounds, STEPS, dist.barrier)[kind])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found[kind] = slowest.median().item()
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # an ordinary exit aborts in Gloo's threads in about one launch of three


# --- launches --------------------------------------------------------------------------------------------------


def launch(backend: str, options: Namespace) -> dict[str, float]:
    rank = ["-m", "bench.frameworks.sharded_steps", "--rank-of", backend, "--rounds", str(options.rounds)]
    found = under_torchrun(options.ranks, rank, KEEP_FREED_MEMORY)
    print(backend, found, file=sys.stderr, flush=True)
    return found


def measure(options: Namespace) -> None:
    launches, modes = [], []
    for number in range(options.launches):
        before = _engine.probe_exchange()
        order = BACKENDS if number % 2 == 0 else BACKENDS[::-1]
        launches.append({backend: launch(backend, options) for backend in order})
        modes.append(mode_of(before, _engine.probe_exchange()))
    rows = [["steps/s", OURS, GLOO, "of Gloo's", "in the launches"]]
    for kind in KINDS:
        rates = [1 / np.median([one[backend][kind] for one in launches]) for backend in (OURS, GLOO)]
        ratios = [one[GLOO][kind] / one[OURS][kind] for one in launches]
        rows.append([kind, *(f"{rate:.1f}" for rate in rates), f"{np.median(ratios):.2f} x", span(ratios)])
    print(f"{options.ranks} ranks, core-to-core exchange {', '.join(modes)}\n\n{markdown(rows)}")


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help=f"of {STEPS} steps (5)")
    parser.add_argument("--rank-of", choices=BACKENDS, help="be a rank that torchrun has started")
    options = parser.parse_args()
    rank_main(options.rank_of, options.rounds) if options.rank_of else measure(options)


if __name__ == "__main__":
    main()
