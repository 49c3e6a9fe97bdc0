"""What the comparisons of training steps and calls share: models, turns, and how figures are shown and kept."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from ringreduce.bench.results import save

# Otherwise glibc gives 100 MB of memory back in some steps, if the gradients of a contestant lie at the end of the
# heap, and faulting it in again takes longer than a step.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
T = TypeVar("T")
Step = Callable[[], object]


def rotated(names: Iterable[T], turn: int) -> list[T]:
    """Returns the contestants in the order of a turn: each is first in one of them."""
    found = list(names)
    shift = turn % len(found)
    return found[shift:] + found[:shift]


def shuffled(names: Iterable[T], turn: int) -> list[T]:
    """Returns the contestants in an order that is random, and the same on all ranks."""
    found = list(names)
    return random.Random(turn).sample(found, len(found))


def in_turns(
    steps: dict[str, Step],
    rounds: int,
    together: int,
    barrier: Step,
    order: Callable[[Iterable[str], int], list[str]] = shuffled,
    warm: int = 1,
    lead: int = 0,
) -> dict[str, list[float]]:
    """Returns this rank's seconds of a step of each contestant, for each round.

    Args:
        together: the steps that are timed together.
        barrier: what all ranks call before each turn.
        order: the order of the contestants in a round, by the round's number.
        warm: rounds before those that count.
        lead: steps of each turn before those that are timed. The first step after another contestant's finds that
            one's data in the caches, and its arrays in free memory.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm + rounds):
        for name in order(steps, number):
            barrier()
            for _ in range(lead):
                steps[name]()
            start = perf_counter()
            for _ in range(together):
                steps[name]()
            times[name].append((perf_counter() - start) / together)
    return {name: own[warm:] for name, own in times.items()}


def chain(width: int, layers: int) -> Any:
    """Returns linear layers that follow each other, with the same parameters on all ranks."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def step_of(
    model: Any, samples: int, width: int, optimizer: Any = None, then: Step = lambda: None
) -> Callable[[], None]:
    """Returns a training step. ``optimizer`` is SGD if there is none; ``then`` ends the step."""
    import torch

    x = torch.randn(samples, width)
    chosen = optimizer or torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        chosen.zero_grad()
        model(x).square().mean().backward()
        chosen.step()
        then()

    return step


def under_torchrun(ranks: int, words: Sequence[str], variables: dict[str, str]) -> dict[str, Any]:
    """Runs a Python program under torchrun, with a thread for each rank. Returns the line of JSON that it prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    own = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | variables
    done = subprocess.run([*launcher, *words], env=own, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    (found,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return found


def span(ratios: Iterable[float]) -> str:
    """Returns the lowest and the highest ratio as text."""
    ordered = sorted(ratios)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}"


def add_json_option(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="keep all figures in bench/results/")


def keep(options: Namespace, name: str, tables: list[dict[str, Any]]) -> None:
    """Writes the figures to a file of bench/results, if ``--json`` asks for it, and prints its path."""
    if options.json:
        print(f"\n{save(Path(__file__).parent / 'results', name, tables)}")
