"""Compares asynchronous training with synchronous: time to a loss with a slow rank, and the rate of push and pull.

    python3 -m bench.training.parameter_server --only losses
    python3 -m bench.training.parameter_server --only rates
    python3 -m bench.training.parameter_server --only pilot      # the learning rates, tried in one process
    python3 -m bench.training.parameter_server --only pairs      # what the communicators of pairs cost

A small network learns scikit-learn's digits on 4 ranks. A gradient also takes 1.5 ms of sleep for each of its samples,
three times as long on the last rank: ranks share two cores, and a sleep gives its core away. Rank 0 keeps its
parameters ten times a second. Their loss on the held-out samples is computed after training, and the time to a loss is
that of the first parameters with this loss.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # optimizers import it, which takes seconds; here before ranks are forked
from torch import nn
from torch.nn.functional import cross_entropy

import ringreduce
from bench.turns import rotated, span
from ringreduce.parameter_server.wire import matchings
from ringreduce.text import markdown
from ringreduce.train.config import Config
from ringreduce.train.data import load_data

RANKS, SAMPLES, SLEEP, SLOWER = 4, 16, 0.0015, 3
KEEP_EVERY = 0.1  # seconds
MODEL_BYTES = 64 << 20
# For each contestant: the arguments of ParameterServer, whether batches are shared, and the learning rate.
CONTESTANTS: dict[str, tuple[dict[str, Any] | None, bool, float]] = {
    "DataParallel": (None, False, 0.2),
    "staleness 0": ({"staleness": 0}, False, 0.2),
    "staleness 0, shared batches": ({"staleness": 0}, True, 0.2),
    "staleness 3": ({"staleness": 3}, False, 0.05),
    "staleness 3, shared batches": ({"staleness": 3}, True, 0.05),
    "no bound, shared batches": ({"staleness": None}, True, 0.05),
    "the same, compensated": ({"staleness": None, "delay_compensation": 0.04}, True, 0.05),
    "the same, adaptive": (
        {"staleness": None, "delay_compensation": 2.0, "compensation_decay": 0.95},
        True,
        0.05,
    ),
}
REFERENCE, GOAL = "staleness 0", "staleness 3, shared batches"


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["losses", "rates", "pilot", "pairs"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=400, help="batches of all workers (400)")
    parser.add_argument("--target", type=float, default=0.25, help="held-out loss (0.25)")
    parser.add_argument("--rounds", type=int, default=15, help="exchanges in a launch (15)")
    return parser.parse_args()


# --- time to a loss --------------------------------------------------------------------------------------------


def make_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64),
        nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


class Digits:
    """Batches by number, in an order that the seed determines, and the held-out samples."""

    def __init__(self, seed: int) -> None:
        data, held_out = load_data(Config(task="digits"))
        self.x, self.y = self._stacked(data)
        self.held_out = self._stacked(held_out)
        self._order = np.random.default_rng(seed)
        self._epochs: list[Any] = []

    @staticmethod
    def _stacked(data: Any) -> tuple[Any, Any]:
        pairs = [data[n] for n in range(len(data))]
        return torch.stack([x.reshape(8, 8) for x, _ in pairs]), torch.stack(
            [y.flatten()[0] for _, y in pairs]
        )

    def batch(self, number: int) -> tuple[Any, Any]:
        each = len(self.x) // SAMPLES
        epoch, place = divmod(number, each)
        while len(self._epochs) <= epoch:
            self._epochs.append(self._order.permutation(len(self.x)))
        chosen = self._epochs[epoch][place * SAMPLES : (place + 1) * SAMPLES]
        return self.x[chosen], self.y[chosen]

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        x, y = self.held_out
        return float(cross_entropy(model(x), y))


class Keeper:
    """Keeps parameters and their time on rank 0."""

    def __init__(self, model: nn.Module, rank: int) -> None:
        self._model, self._keeps = model, rank == 0
        self.kept: list[tuple[float, list[Any]]] = []
        self._began = time.monotonic()

    def __call__(self, last: bool = False) -> None:
        now = time.monotonic() - self._began
        if self._keeps and (last or not self.kept or now - self.kept[-1][0] >= KEEP_EVERY):
            self.kept.append((now, [p.detach().clone() for p in self._model.parameters()]))


def gradient(model: nn.Module, digits: Digits, number: int, rank: int) -> None:
    x, y = digits.batch(number)
    cross_entropy(model(x), y).backward()
    time.sleep(SLEEP * len(x) * (SLOWER if rank == RANKS - 1 else 1))


def train(comm: Any, name: str, seed: int, batches: int, target: float) -> tuple[float, float, float]:
    """Returns when the loss was reached, the time of all batches, and the last loss, on rank 0."""
    torch.set_num_threads(1)
    options, shared, rate = CONTESTANTS[name]
    digits, plain = Digits(seed), make_model(seed)
    steps = range(batches // RANKS)
    if options is None:
        model: nn.Module = ringreduce.DataParallel(plain, comm)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate)
    else:
        model = plain
        optimizer = ringreduce.ParameterServer(comm.split(0), plain, torch.optim.SGD, lr=rate, **options)
    comm.barrier()
    keep = Keeper(plain, comm.rank)
    for number in optimizer.batches(batches) if shared else (RANKS * step + comm.rank for step in steps):
        keep()
        optimizer.zero_grad()
        gradient(model, digits, number, comm.rank)
        optimizer.step()
    if options is not None:
        optimizer.close()
    comm.barrier()
    keep(last=True)
    reached, loss = float("inf"), float("nan")
    for at, values in keep.kept:
        with torch.no_grad():
            for p, value in zip(plain.parameters(), values, strict=True):
                p.copy_(value)
        loss = digits.loss(plain)
        if loss <= target and reached == float("inf"):
            reached = at
    return reached, keep.kept[-1][0] if keep.kept else 0.0, loss


def losses(options: Namespace) -> list[list[str]]:
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTESTANTS}
    for seed in range(options.seeds):
        for name in rotated(CONTESTANTS, seed):
            ranks = ringreduce.run(train, RANKS, name, seed, options.batches, options.target)
            found[name].append(ranks[0])
            print(f"seed {seed}: {name}: {ranks[0]}", file=sys.stderr, flush=True)
    reference = [reached for reached, _, _ in found[REFERENCE]]
    rows = [
        [
            "",
            "learning rate",
            f"s to loss {options.target}",
            "times as fast",
            "s for all",
            "last loss",
        ]
    ]
    for name, own in found.items():
        ratios = [theirs / mine for (mine, _, _), theirs in zip(own, reference, strict=True)]
        rows.append(
            [
                name,
                f"{CONTESTANTS[name][2]}",
                f"{statistics.median(each[0] for each in own):.2f}",
                f"{statistics.median(ratios):.2f} ({span(ratios)})",
                f"{statistics.median(each[1] for each in own):.2f}",
                f"{statistics.median(each[2] for each in own):.3f}",
            ]
        )
        if name == GOAL:
            goal = statistics.median(ratios)
    print(f"goal: {GOAL}: at least 1.5 times as fast: {goal:.2f}: {'yes' if goal >= 1.5 else 'NO'}\n")
    return rows


def pilot(options: Namespace) -> list[list[str]]:
    """Tries learning rates in one process: a clock's four batches in one step, and one batch in a step."""
    torch.set_num_threads(1)
    rows = [["learning rate", "batches to the loss, 4 a step", "batches to the loss, 1 a step"]]
    for rate in (0.025, 0.05, 0.1, 0.2, 0.4, 0.8):
        cells = []
        for each in (RANKS, 1):
            counts = []
            for seed in range(options.seeds):
                digits, model = Digits(seed), make_model(seed)
                optimizer = torch.optim.SGD(model.parameters(), lr=rate)
                counts.append(float("inf"))
                for step in range(3 * options.batches // each):
                    optimizer.zero_grad()
                    parts = [digits.batch(step * each + part) for part in range(each)]
                    x, y = (torch.cat(both) for both in zip(*parts, strict=True))
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if step * each % 20 == 0 and digits.loss(model) <= options.target:
                        counts[-1] = step * each
                        break
            cells.append(f"{statistics.median(counts):.0f} ({min(counts):.0f} to {max(counts):.0f})")
        rows.append([str(rate), *cells])
    return rows


# --- rates -----------------------------------------------------------------------------------------------------


def timed(comm: Any, rounds: int, call: Any) -> float:
    """Returns the median of the slowest rank's times, without the first."""
    times = []
    for _ in range(rounds + 1):
        comm.barrier()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.median(comm.all_reduce(np.array(times[1:]), "max")))


def exchange(comm: Any, rounds: int) -> dict[str, float]:
    """Returns the seconds of each exchange of a model's bytes between two ranks."""
    torch.set_num_threads(1)
    found = {}
    memory = ringreduce.zeros(MODEL_BYTES // 4, torch.float32)
    send, receive = (partial(call, memory, 1 - comm.rank) for call in (comm.send, comm.recv))
    found["send and recv"] = timed(comm, rounds, send if comm.rank == 0 else receive)
    found["all-reduce"] = timed(comm, rounds, partial(comm.all_reduce, memory))
    for name, more in (
        ("push and pull: one worker, one server", {"servers": 1}),
        ("push and pull: two workers that serve", {"copies": False}),
        ("push and pull: two workers that serve, with copies", {"copies": True}),
    ):
        model = nn.Linear(MODEL_BYTES // 4 // 1024, 1024, bias=False)
        server = ringreduce.ParameterServer(
            comm.split(0), model, torch.optim.SGD, lr=0.1, staleness=None, **more
        )
        model.weight.grad = torch.zeros_like(model.weight)
        works = comm.rank in server.workers
        found[name] = timed(comm, rounds, server.step if works else lambda: None)
        server.close() if works else server.serve()
    return found


def rates(options: Namespace) -> list[list[str]]:
    found = ringreduce.run(exchange, 2, options.rounds)[0]
    rows = [["64 MiB, 2 ranks", "ms", "GB/s of a rank"]]
    for name, seconds in found.items():
        ways = 2 if name.startswith("push") else 1
        rows.append([name, f"{1e3 * seconds:.1f}", f"{ways * MODEL_BYTES / seconds / 1e9:.2f}"])
    return rows


# --- pairs -----------------------------------------------------------------------------------------------------


def pairs_cost(comm: Any) -> tuple[float, int, int]:
    """Returns the seconds of making all pairs' communicators, and their file descriptors and bytes on a rank."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    comm.barrier()
    began = time.perf_counter()
    children = []
    for pairs in matchings(comm.size):
        own = next((pair for pair in pairs if comm.rank in pair), None)
        children.append(comm.split(None if own is None else own[0]))
    seconds = time.perf_counter() - began
    comm.barrier()
    descriptors = len(list(Path("/proc/self/fd").iterdir())) - before
    return seconds, descriptors, sum(child.memory_held for child in children if child)


def pairs(options: Namespace) -> list[list[str]]:
    rows = [
        ["transport", "ranks", "pairs of a rank", "ms to make", "file descriptors", "MiB of address space"]
    ]
    for transport in ("shm", "tcp"):
        for ranks in (2, 4, 8, 16):
            found = ringreduce.run(pairs_cost, ranks, transport=transport)
            seconds, descriptors, held = (max(column) for column in zip(*found, strict=True))
            cells = (ranks - 1, f"{1e3 * seconds:.0f}", descriptors, f"{held / 2**20:.1f}")
            rows.append([transport, str(ranks), *map(str, cells)])
    return rows


def main() -> None:
    options = parse_arguments()
    for name, measure in (("pilot", pilot), ("losses", losses), ("rates", rates), ("pairs", pairs)):
        if options.only == name or (options.only is None and name != "pilot"):
            print(markdown(measure(options)), "\n")


if __name__ == "__main__":
    main()
