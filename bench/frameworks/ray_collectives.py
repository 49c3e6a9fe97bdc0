"""Compares all-reduces of Ray actors (ray.util.collective) over ringreduce and over Gloo.

    make .venv-frameworks/.ready
    .venv-frameworks/bin/python -m bench.frameworks.ray_collectives

The actors have a group of each backend, and use them in turn. Arrays are rewritten outside the timed part. A time is
the median of the slowest actor's times.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from time import perf_counter

import numpy as np
import ray
import ray.util.collective as collective

import ringreduce.ray
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import human_bytes, human_us, markdown

ROOT = Path(__file__).resolve().parents[2]

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
GLOO, OURS = BACKENDS = ("gloo", "ringreduce")


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, rank: int, ranks: int) -> None:
        self.place = ranks, rank
        ringreduce.ray.register()

    def join(self) -> None:
        for backend in BACKENDS:
            collective.init_collective_group(*self.place, backend, backend)

    def times(self, nbytes: int, budget: float, turn: int) -> dict[str, list[float]]:
        """Returns the seconds of calls of each backend, equally many on all actors."""
        x, found = np.ones(nbytes // 4, "float32"), {backend: [] for backend in BACKENDS}
        calls = np.array([1 << 30])
        for number in range(1 << 30):
            for backend in BACKENDS if (number + turn) % 2 else BACKENDS[::-1]:
                x[:] = 1
                collective.barrier(OURS)
                start = perf_counter()
                collective.allreduce(x, backend)
                found[backend].append(perf_counter() - start)
            if number == 4:  # warm; decide together how many calls there will be
                slowest = max(times[-1] for times in found.values())
                calls[0] = min(2000, max(20, int(budget / slowest)))
                collective.allreduce(calls, OURS, collective.types.ReduceOp.MIN)
            if number == calls[0]:
                return {backend: times[5:] for backend, times in found.items()}
        raise AssertionError


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each size (1)")
    options = parser.parse_args()
    before = _engine.probe_exchange()
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ray.init(num_cpus=1, log_to_driver=False, runtime_env={"env_vars": environment})
    medians: dict[tuple[str, int], list[float]] = {}
    for launch in range(options.launches):
        actors = [Actor.remote(rank, options.ranks) for rank in range(options.ranks)]
        ray.get([actor.join.remote() for actor in actors])
        for nbytes in SIZES:
            found = ray.get([actor.times.remote(nbytes, options.budget, launch) for actor in actors])
            for backend in BACKENDS:
                slowest = np.max([one[backend] for one in found], axis=0)
                medians.setdefault((backend, nbytes), []).append(float(np.median(slowest)))
        for actor in actors:
            ray.kill(actor)
    rows = [["allreduce, microseconds", *BACKENDS[::-1], "of Gloo's rate", "in the launches"]]
    for nbytes in SIZES:
        ours, gloo = (np.array(medians[backend, nbytes]) for backend in (OURS, GLOO))
        each = f"{min(gloo / ours):.1f} to {max(gloo / ours):.1f}"
        cells = [human_us(1e6 * np.median(times)) for times in (ours, gloo)]
        rows.append([human_bytes(nbytes), *cells, f"{np.median(gloo / ours):.1f} x", each])
    mode = mode_of(before, _engine.probe_exchange())
    print(f"{options.ranks} actors, core-to-core exchange {mode}\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
