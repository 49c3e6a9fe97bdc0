"""One rank of compression.py: whole trainings on one host, or short trainings with each method between two."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

import ringreduce
from bench.network.rendezvous import Rendezvous
from bench.training.between_hosts import add_rank_options, joined, sent
from bench.training.byte_model import Training
from ringreduce import compression

FLOAT32 = "float32"
# The share of the steps in which methods warm up: signs are not compressed, and top-k sends more at first.
WARM_UP = {"1-bit sign": 0.15, "top-k 1%": 0.4}
METHODS: dict[str, Callable[[Any, int], compression.Compression | None]] = {
    FLOAT32: lambda comm, warm: None,
    "bf16": lambda comm, warm: compression.HalfPrecision("bf16", comm),
    "int8 blocks": lambda comm, warm: compression.Int8Blocks(comm),
    "1-bit sign": lambda comm, warm: compression.SignMajority(comm, start_iter=warm),
    "top-k 1%": lambda comm, warm: compression.TopK(comm, fraction=0.01, warmup_steps=warm),
    "PowerSGD 32": lambda comm, warm: compression.PowerSGD(comm, matrix_rank=32),
}


def warm_steps(name: str, steps: int) -> int:
    return int(WARM_UP.get(name, 0) * steps)


def prepared(comm: Any, name: str, steps: int, seed: int) -> tuple[Training, Any]:
    state = METHODS[name](comm, warm_steps(name, steps))

    def wrap(model: Any) -> Any:
        wrapped = ringreduce.DataParallel(model, comm)
        if state is not None:
            wrapped.register_comm_hook(state, compression.hook)
        return wrapped

    return Training(comm.rank, steps, wrap, seed), state


def whole_training(comm: Any, name: str, steps: int, seed: int) -> float:
    """Trains for a number of steps, and returns the held-out loss."""
    training, _ = prepared(comm, name, steps, seed)
    for _ in range(steps):
        training.step()
    return training.held_out_loss()


def short_training(comm: Any, meeting: Rendezvous, name: str, steps: int, interface: str) -> dict[str, Any]:
    """Returns the seconds of each step on the slowest rank, and the bytes that the host sent and the state counted."""
    training, state = prepared(comm, name, steps, 0)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    plain = 2 * (comm.size - 1) / comm.size * 4 * parameters
    seconds, wire, counted = [], [], []
    for _ in range(steps):
        meeting.barrier()
        wire_before, counted_before = sent(interface), state.bytes_sent if state else 0
        start = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - start)
        wire.append(sent(interface) - wire_before)
        counted.append(state.bytes_sent - counted_before if state else plain)
    slowest = meeting.maximum(seconds).tolist()
    return {"method": name, "seconds": slowest, "wire": wire, "counted": counted, "parameters": parameters}


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_rank_options(parser)
    parser.add_argument("--methods", type=lambda text: text.split(","), required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    with joined(options, 2, 60.0) as (comm, meeting):
        for name in options.methods:
            line = short_training(comm, meeting, name, options.steps, options.interface)
            if options.rank == 0:
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
