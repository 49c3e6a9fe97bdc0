"""Compares training under frameworks with RINGREDUCE_AS=gloo and without, where nothing else differs.

    make .venv-frameworks/.ready
    .venv-frameworks/bin/python -m bench.frameworks.as_gloo
    .venv-frameworks/bin/python -m bench.frameworks.as_gloo --only Accelerate,Lightning --launches 1

Each launch starts each program of gloo_programs.py twice on two ranks, in turn. A step is a forward pass over two
samples of a rank, the backward pass and the update. Its time is the median of the steps of a launch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.turns import KEEP_FREED_MEMORY, rotated, span
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown

ROOT = Path(__file__).resolve().parents[2]
SWITCH = {"RINGREDUCE_AS": "gloo"}
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


@dataclass(frozen=True)
class Row:
    """A framework.

    Attributes:
        package: the package that has it.
        program: its function in gloo_programs.py.
        typed: what a user types.
        width: of the model that is timed.
        launcher: the module that starts the ranks. Without one, the framework does.
        environment: what a user sets besides.
    """

    package: str
    program: str
    typed: str
    width: int = 1024
    launcher: tuple[str, ...] = TORCHRUN
    environment: tuple[tuple[str, str], ...] = ()


CPU = (("ACCELERATE_USE_CPU", "true"),)  # what `accelerate launch --cpu` sets
ROWS = {
    "Accelerate": Row("accelerate", "accelerate", "`Accelerator()`", environment=CPU),
    "transformers": Row("transformers", "transformers", '`TrainingArguments(ddp_backend="gloo")`', 256),
    "TRL": Row("trl", "trl", "`SFTTrainer`", 256, environment=CPU),
    "Lightning": Row("lightning", "lightning", '`Trainer(strategy="ddp")`', launcher=()),
    "DeepSpeed": Row("deepspeed", "deepspeed", "`deepspeed.initialize`, ZeRO 3"),
    "Ray Train": Row("ray", "ray", "`TorchTrainer` without a `TorchConfig`", launcher=()),
    "RLlib": Row("gymnasium", "rllib", "`PPOConfig().learners(num_learners=2)`", 128, launcher=()),
    "torchft": Row("torchft", "torchft", "`Manager(pg=ProcessGroupGloo())`"),
    "PyTorch Geometric": Row("torch-geometric", "pyg", "`DistributedSampler` and DDP"),
}


def launch(row: Row, switched: bool, steps: int, width: int, **more: str) -> dict[str, Any]:
    """Returns the line that a program prints."""
    command = [sys.executable, "-m", *row.launcher, "bench.frameworks.gloo_programs"]
    given = {name: value for name, value in os.environ.items() if name not in SWITCH}
    given |= dict(row.environment) | (SWITCH if switched else {}) | more
    given |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RUST_LOG": "error"}
    words = [row.program, str(steps), str(width)]
    done = subprocess.run([*command, *words], env=given, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"losses')]
    # Gloo's own processes sometimes abort when they have ended ("terminate called without an active exception").
    if len(lines) != 1 or (done.returncode and lines[0]["served by"] != "torch"):
        raise RuntimeError(done.stdout + done.stderr)
    return lines[0]


def measure(name: str, number: int, steps: int) -> tuple[float, float, float]:
    """Returns how many times Gloo's steps ours makes, and the steps of both in a second."""
    seconds = {}
    for switched in (True, False) if number % 2 else (False, True):
        found = launch(
            ROWS[name], switched, steps, ROWS[name].width, **KEEP_FREED_MEMORY, GLOO_SOCKET_IFNAME="lo"
        )
        seconds[switched] = found["seconds"]
        print(name, found["served by"], f"{1e3 * found['seconds']:.1f} ms", file=sys.stderr, flush=True)
    return seconds[False] / seconds[True], 1 / seconds[True], 1 / seconds[False]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default=",".join(ROWS), help="names of frameworks, separated by commas")
    options = parser.parse_args()
    names, before = options.only.split(","), _engine.probe_exchange()
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for number in range(options.launches):
        for name in rotated(names, number):
            found[name].append(measure(name, number, options.steps))
    rows = [["framework", "version", "what a user types", "steps/s", "Gloo", "of Gloo's", "in the launches"]]
    for name, launches in found.items():
        (ratio, ours, gloo), ratios = np.median(launches, axis=0), [one[0] for one in launches]
        package = "ray" if name == "RLlib" else ROWS[name].package
        cells = [f"{ours:.1f}", f"{gloo:.1f}", f"{ratio:.2f} x", span(ratios)]
        rows.append([name, version(package), ROWS[name].typed, *cells])
    print(f"core-to-core exchange {mode_of(before, _engine.probe_exchange())}\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
