"""Compares Horovod's API over ringreduce with torch.distributed over Gloo: small calls, and training steps.

    python3 -m bench.frameworks.horovod
    python3 -m bench.frameworks.horovod --ranks 4 --launches 5 --json

All contestants run in the same rank processes, with one thread each, and take turns in a different order in each round.
Calls have the same name every time (the steady state) and follow the rules of protocol.py. A step is a forward and a
backward pass and a step of SGD, of a chain of 24 linear layers with 25.2 M parameters and one sample per rank. Times
are those of the slowest rank.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

import ringreduce
from bench.training.data_parallel import WORKLOADS
from bench.turns import KEEP_FREED_MEMORY, add_json_option, chain, in_turns, keep, rotated, span, step_of
from ringreduce import _engine
from ringreduce.bench import gloo
from ringreduce.bench.problem import Problem
from ringreduce.bench.protocol import Buffers, Effort, Library, measure
from ringreduce.bench.results import mode_of
from ringreduce.text import human_bytes, human_us, markdown

GLOO, DDP_OURS, HOROVOD, OURS = "DDP, Gloo", "DDP, ringreduce", "DistributedOptimizer", "DataParallel"
ALONE = "the model alone"
SIZES = (8, 4 << 10, 64 << 10, 1 << 20)
WORKLOAD = WORKLOADS[0]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3, help="number of launches (3)")
    parser.add_argument("--rounds", type=int, default=7, help="number of turns of each contestant (7)")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each figure of a call (0.3)")
    parser.add_argument("--without-steps", action="store_true", help="calls only")
    add_json_option(parser)
    return parser.parse_args()


# --- on each rank ------------------------------------------------------------------------------------------------


def rank_main(comm: Any, options: Namespace, folder: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import ringreduce.horovod.torch as hvd

    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    gloo.join(comm.rank, comm.size, f"{folder}/store")  # its threads may use every core
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    hvd.init(comm)
    found = {"calls": _calls(comm, options), "steps": []}
    if not options.without_steps:
        found["steps"] = _steps(comm, options)
    hvd.shutdown()
    dist.destroy_process_group()
    return found


def _calls(comm: Any, options: Namespace) -> list[dict[str, Any]]:
    import torch

    import ringreduce.horovod.torch as hvd

    def out_of_place(_: Problem, array: Any) -> Any:
        x = torch.from_numpy(array)
        return lambda: hvd.allreduce(x, op=hvd.Sum, name="call"), array

    def in_place(_: Problem, array: Any) -> Any:
        x = torch.from_numpy(array)
        return lambda: hvd.allreduce_(x, op=hvd.Sum, name="call"), array

    def bare(_: Problem, array: Any) -> Any:
        return lambda: comm.all_reduce(array), array

    entries = {
        "hvd.allreduce": out_of_place,  # its results are new tensors, which the protocol does not see
        "hvd.allreduce_": in_place,
        "comm.all_reduce": bare,
        "Gloo": gloo.prepare,
    }
    lines = []
    for place, nbytes in enumerate(SIZES):
        problem = Problem("all_reduce", nbytes)
        for name in rotated(entries, place):
            library = Library(name, comm.rank, comm.size, comm.barrier, gloo.maximum, entries[name])
            effort = Effort(options.budget, check=name != "hvd.allreduce")
            lines.append(measure(library, Buffers(library, problem), effort))
    return lines


def _steps(comm: Any, options: Namespace) -> list[dict[str, Any]]:
    steps = _contestants(comm)
    times = in_turns(steps, options.rounds, WORKLOAD.steps, comm.barrier, warm=2)
    slowest = comm.all_reduce(np.array(list(times.values())), "max")
    return [{"contestant": name, "seconds": list(row)} for name, row in zip(times, slowest, strict=True)]


def _contestants(comm: Any) -> dict[str, Callable[[], None]]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import ringreduce.horovod.torch as hvd

    samples, width = WORKLOAD.samples, WORKLOAD.width

    def model() -> Any:
        return chain(width, WORKLOAD.layers)

    groups = {GLOO: dist.group.WORLD, DDP_OURS: dist.new_group(backend="ringreduce")}
    steps: dict[str, Callable[[], None]] = {}
    for name, group in groups.items():
        ddp = DistributedDataParallel(model(), process_group=group, gradient_as_bucket_view=True)
        steps[name] = step_of(ddp, samples, width)
    steps[OURS] = step_of(ringreduce.DataParallel(model(), comm.split(0)), samples, width)
    steps[ALONE] = step_of(model(), samples, width)
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-4, foreach=True)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=trained.named_parameters())
    steps[HOROVOD] = step_of(trained, samples, width, optimizer)
    return steps


# --- tables ------------------------------------------------------------------------------------------------------


def calls_text(launches: list[dict[str, Any]]) -> str:
    """Returns medians over the launches, and half the distance between the fastest and the slowest."""
    lines = [line for launch in launches for line in launch["calls"]]
    rows = [["microseconds", *(human_bytes(nbytes) for nbytes in SIZES)]]
    for name in sorted({line["library"] for line in lines}):
        rows.append([name])
        for nbytes in SIZES:
            own = [line for line in lines if (line["library"], line["bytes"]) == (name, nbytes)]
            times = [line["median_us"] for line in own]
            median = float(np.median(times))
            text = f"{human_us(median)} ±{50 * (max(times) - min(times)) / median:.0f}%"
            rows[-1].append("wrong" if any(line["wrong"] for line in own) else text)
    return markdown(rows)


def steps_text(launches: list[dict[str, Any]]) -> str:
    """Returns medians over the launches' medians, and the median and range of the launches' ratios."""
    medians = [
        {line["contestant"]: float(np.median(line["seconds"])) for line in launch["steps"]}
        for launch in launches
    ]
    rows = [["", "steps/s", "of DDP over Gloo", "in the launches"]]
    for name in medians[0]:
        rate = 1 / float(np.median([one[name] for one in medians]))
        ratios = [one[GLOO] / one[name] for one in medians]
        rows.append([name, f"{rate:.2f}", f"{np.median(ratios):.2f} x", span(ratios)])
    return markdown(rows)


def launch(options: Namespace) -> dict[str, Any]:
    before = _engine.probe_exchange()
    with tempfile.TemporaryDirectory() as folder:
        found = ringreduce.run(rank_main, options.ranks, options, folder, start="spawn")[0]
    return {**found, "before_ns": before, "after_ns": _engine.probe_exchange()}


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    found = [launch(options) for _ in range(options.launches)]
    mode = ", ".join(mode_of(one["before_ns"], one["after_ns"]) for one in found)
    print(
        f"{options.ranks} ranks, {options.launches} launches, core-to-core exchange {mode}\n\n{calls_text(found)}"
    )
    if found[0]["steps"]:
        print(f"\n{WORKLOAD.parameters / 1e6:.1f} M parameters\n\n{steps_text(found)}")
    keep(options, "horovod", [{"options": vars(options), "launches": found}])


if __name__ == "__main__":
    main()
