"""Compares training steps with DataParallel, and with torch's DDP over our backend and over Gloo.

    python3 -m bench.training.data_parallel
    python3 -m bench.training.data_parallel --ranks 2 --rounds 9 --json

All contestants run in the same rank processes, with one thread each, and take turns in a different order in each round.
The time of a step is that of the slowest rank. The table shows medians over rounds, and half the distance between the
quartiles. The floors are the same steps within no_sync(), and steps of the model alone.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import ringreduce
from bench.turns import KEEP_FREED_MEMORY, add_json_option, chain, in_turns, keep, step_of
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown

OURS, DDP, GLOO = "DataParallel", "DDP, ringreduce", "DDP, Gloo"
UNSYNCED, ALONE = "DataParallel, no_sync", "the model alone"


@dataclass(frozen=True)
class Workload:
    """A chain of linear layers, the samples per rank and step, and the number of steps that are timed together."""

    name: str
    width: int
    layers: int
    samples: int
    steps: int

    @property
    def parameters(self) -> int:
        return self.layers * (self.width * self.width + self.width)


WORKLOADS = [
    Workload("communication-bound", 1024, 24, 1, 4),
    Workload("compute-bound", 512, 8, 256, 3),
]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="number of turns of each contestant (15)")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="bucket size of all contestants (25)")
    parser.add_argument("--only", choices=[workload.name for workload in WORKLOADS])
    add_json_option(parser)
    return parser.parse_args()


# --- on each rank ----------------------------------------------------------------------------------------------


def rank_main(comm: Any, options: Namespace, folder: str) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    place = {"rank": comm.rank, "world_size": comm.size, "init_method": f"file://{folder}/store"}
    dist.init_process_group("gloo", **place)
    groups = {DDP: dist.new_group(backend="ringreduce"), GLOO: dist.group.WORLD}
    chosen = [workload for workload in WORKLOADS if options.only in (None, workload.name)]
    results = [result for workload in chosen for result in _measured(comm, groups, workload, options)]
    dist.destroy_process_group()
    return results


def _measured(
    comm: Any, groups: dict[str, Any], workload: Workload, options: Namespace
) -> list[dict[str, Any]]:
    shares: list[list[float]] = []
    steps = _contestants(comm, groups, workload, options.bucket_mb, shares)
    times = in_turns(steps, options.rounds, workload.steps, comm.barrier, warm=2)
    slowest = comm.all_reduce(np.array(list(times.values())), "max")
    communication, exposed = np.median(np.array(shares[2 * workload.steps :]), axis=0)
    return [
        {
            "workload": workload.name,
            "contestant": name,
            "seconds": list(row),
            **({"communication": communication, "exposed": exposed} if name == OURS else {}),
        }
        for name, row in zip(times, slowest, strict=True)
    ]


def _contestants(
    comm: Any, groups: dict[str, Any], workload: Workload, bucket_mb: float, shares: list[list[float]]
) -> dict[str, Callable[[], None]]:
    """Returns the steps. Ours adds to ``shares`` the seconds of its communication and those that are exposed."""
    from torch.nn.parallel import DistributedDataParallel

    samples, width = workload.samples, workload.width

    def model() -> Any:
        return chain(width, workload.layers)

    steps: dict[str, Callable[[], None]] = {}
    ours = ringreduce.DataParallel(model(), comm, bucket_mb=bucket_mb)

    def note() -> None:
        shares.append([ours.timings.communication, ours.timings.exposed])

    steps[OURS] = step_of(ours, samples, width, then=note)
    for name, group in groups.items():
        ddp = DistributedDataParallel(
            model(), process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb
        )
        steps[name] = step_of(ddp, samples, width)
    unsynced = ringreduce.DataParallel(model(), comm, bucket_mb=bucket_mb)
    step = step_of(unsynced, samples, width)

    def without_exchange() -> None:
        with unsynced.no_sync():
            step()

    steps[UNSYNCED] = without_exchange
    steps[ALONE] = step_of(model(), samples, width)
    return steps


# --- tables ----------------------------------------------------------------------------------------------------


def table(workload: Workload, results: list[dict[str, Any]]) -> str:
    own = {result["contestant"]: result for result in results if result["workload"] == workload.name}
    medians = {name: float(np.median(result["seconds"])) for name, result in own.items()}
    rows = [["", "steps/s", "of DDP over Gloo", "of DDP over ringreduce"]]
    for name, result in own.items():
        low, high = np.quantile(result["seconds"], [0.25, 0.75])
        spread = 50 * (high - low) / medians[name]
        ratios = (f"{medians[other] / medians[name]:.2f} x" for other in (GLOO, DDP))
        rows.append([name, f"{1 / medians[name]:.2f} ±{spread:.0f}%", *ratios])
    ours = own[OURS]
    what = (
        f"{workload.name}: {workload.parameters / 1e6:.1f} M parameters in {workload.layers} layers, "
        f"{workload.samples} samples per rank"
    )
    shares = f"Communication {1e3 * ours['communication']:.1f} ms per step, exposed {1e3 * ours['exposed']:.1f} ms."
    return f"{what}\n\n{markdown(rows)}\n\n{shares}"


def main() -> None:
    options = parse_arguments()
    os.environ.update(KEEP_FREED_MEMORY)
    before = _engine.probe_exchange()
    with tempfile.TemporaryDirectory() as folder:
        results = ringreduce.run(rank_main, options.ranks, options, folder, start="spawn")[0]
    after = _engine.probe_exchange()
    known = [workload for workload in WORKLOADS if options.only in (None, workload.name)]
    print(f"{options.ranks} ranks, core-to-core exchange {mode_of(before, after)}\n")
    print("\n\n".join(table(workload, results) for workload in known))
    figures = {"probes_ns": [before, after], "options": vars(options), "results": results}
    keep(options, "data_parallel", [{**figures, "workloads": [asdict(workload) for workload in known]}])


if __name__ == "__main__":
    main()
