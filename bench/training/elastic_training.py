"""Elastic training under losses: ranks are killed and started again while a GPT trains.

    python -m bench.training.elastic_training --seconds 300 --every 20             # DataParallel
    python -m bench.training.elastic_training --seconds 300 --every 20 --sharded   # ShardedOptimizer, with copies
    python -m bench.training.elastic_training --steps 600 --every 5                # for the loss after so many steps
    python -m bench.training.elastic_training --undisturbed 3 --steps 600          # and of three seeds without deaths
    python -m bench.training.elastic_training --costs                              # of the agreement and of the copies

The first two start ``ringreduce run -n 4 --restarts 99`` with this file, whose ranks note what they do in a file. The
parent kills a rank every so often. It prints, for each death: when the survivors' next step ended, how many steps were
repeated, and how long the newcomer took from the end of its imports, and from when its model was made, to its first
step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it, which takes seconds

import ringreduce
from ringreduce import elastic
from ringreduce.train.config import Config
from ringreduce.train.trainer import Trainer
from ringreduce.train.training_run import elastic_steps

ROOT = Path(__file__).resolve().parents[2]

RANKS = 4
ENDLESS = 1 << 30


def config_of(options: argparse.Namespace) -> Config:
    """Returns the GPT of ringreduce.train, with smaller batches."""
    return Config(
        batch=12, context=64, steps=options.steps or ENDLESS, seed=options.seed, elastic=1, threads=1, timeout=60,
        sharded_optimizer=2 if options.sharded else 0, evaluate_samples=512, schedule="constant",
    )  # fmt: skip


# --- a rank ----------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    """Trains on one rank, and notes what happens."""
    torch.set_num_threads(1)
    file = Path(options.notes).open("a", buffering=1)  # noqa: SIM115
    began = time.monotonic()

    def note(what: str, **more: Any) -> None:
        file.write(json.dumps({"pid": os.getpid(), "what": what, "at": time.monotonic(), **more}) + "\n")

    newcomer = bool(os.environ.get("RINGREDUCE_NEWCOMER"))
    comm = elastic.start(timeout=60)
    trainer = Trainer(config_of(options), comm)
    note("ready", newcomer=newcomer, took=time.monotonic() - began)
    over = False
    for step in elastic_steps(trainer):
        try:
            with step:
                note("begin", step=step.number, size=step.size)
                if step.comm is not trainer.comm or step.number != trainer.done:
                    trainer.regroup(step.comm, step.number)
                trainer.step()
                over = not options.steps and time.monotonic() > options.until
                over = bool(step.comm.all_reduce(torch.tensor([over]), "max")[0])
        finally:
            note("end", step=step.number, done=step.done)
        if over and step.done:
            break
    found = trainer.evaluate()
    note("over", **found, steps=trainer.done, bytes=state_bytes(trainer))


def state_bytes(trainer: Trainer) -> int:
    """Returns the bytes that a newcomer gets: parameters, and the optimizer's state that it will hold."""
    own = sum(p.nbytes for p in trainer.module.parameters())
    return own + sum(
        value.nbytes
        for state in trainer.optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    )


# --- the parent ------------------------------------------------------------------------------------------------


def disturbed(options: argparse.Namespace) -> None:
    """Runs the training, kills ranks, and prints what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        program = [
            "-m",
            "bench.training.elastic_training",
            "--notes",
            str(notes),
            "--steps",
            str(options.steps),
            "--seed",
            str(options.seed),
        ]
        command = [sys.executable, "-m", "ringreduce", "run", "-n", str(RANKS), "--restarts", "999", *program]
        command += ["--until", str(time.monotonic() + options.seconds)]
        command += ["--sharded"] if options.sharded else []
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        said = Path(folder) / "said"
        with said.open("w") as errors:
            job = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
            deaths = kill_often(options, job, notes)
        found = read(notes)
        if job.wait() or not any(one["what"] == "over" for one in found):
            sys.exit(f"the job ended with status {job.returncode}: {said.read_text()[-5000:]}")
        report(found, deaths)


def read(notes: Path) -> list[dict[str, Any]]:
    """Returns the notes so far, in the order of time."""
    found = []
    for line in notes.read_text().splitlines():
        with contextlib.suppress(ValueError):  # the last one may be half written
            found.append(json.loads(line))
    return sorted(found, key=lambda one: one["at"])


def kill_often(
    options: argparse.Namespace, job: subprocess.Popen[bytes], notes: Path
) -> list[tuple[float, int]]:
    """Kills a random rank that trains, every so often. Returns the times and process ids."""
    chance, deaths = random.Random(options.seed), []
    while not any(one["what"] == "end" for one in read(notes)) and job.poll() is None:
        time.sleep(0.1)
    began = time.monotonic()
    while job.poll() is None:
        time.sleep(0.2)
        now = time.monotonic()
        if now < began + options.every * (len(deaths) + 1) or now > began + options.seconds - 15:
            continue
        dead = {pid for _, pid in deaths}
        alive = {one["pid"] for one in read(notes) if one["what"] == "end"} - dead
        if len(alive) == RANKS:
            pid = chance.choice(sorted(alive))
            deaths.append((time.monotonic(), pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return deaths


def report(notes: list[dict[str, Any]], deaths: list[tuple[float, int]]) -> None:
    ends = [one for one in notes if one["what"] == "end" and one["done"]]
    steps = sorted(durations(notes))
    print(f"{len(deaths)} deaths; a step takes {1e3 * statistics.median(steps):.0f} ms (median)")
    after, vain, joining = [], [], []
    for number, (at, pid) in enumerate(deaths):
        until = deaths[number + 1][0] if number + 1 < len(deaths) else float("inf")
        gone = {victim for _, victim in deaths[: number + 1]}
        survivors = {one["pid"] for one in ends if one["at"] < at} - gone
        nexts = [
            min(one["at"] for one in ends if one["pid"] == pid and one["at"] > at) - at for pid in survivors
        ]
        lost = [
            sum(
                one["what"] == "end" and not one["done"] and one["pid"] == pid and at < one["at"] < until
                for one in notes
            )
            for pid in survivors
        ]
        after.append(max(nexts))
        vain.append(max(lost))
        joining += list(joins(notes, at, until))
        print(f"  death {number + 1}: next step after {max(nexts):.3f} s, {max(lost)} steps lost")
    over = next(one for one in notes if one["what"] == "over")
    if deaths:
        print(f"next step: median {statistics.median(after):.3f} s, longest {max(after):.3f} s")
        print(f"steps lost: at most {max(vain)} a death, {sum(vain)} in all, of {over['steps']}")
    if joining:
        print(
            f"rejoining: median {statistics.median(joining):.3f} s, longest {max(joining):.3f} s ({len(joining)})"
        )
    print(f"state of {over['bytes'] / 1e6:.1f} MB; validation loss {over['validation_loss']:.4f}")


def durations(notes: list[dict[str, Any]]) -> Iterator[float]:
    begun: dict[int, float] = {}
    for one in notes:
        if one["what"] == "begin":
            begun[one["pid"]] = one["at"]
        elif one["what"] == "end" and one["done"] and one["pid"] in begun:
            yield one["at"] - begun[one["pid"]]


def joins(notes: list[dict[str, Any]], since: float, until: float) -> Iterator[float]:
    """Yields how long each newcomer took from being ready to the beginning of its first step."""
    for ready in notes:
        if ready["what"] == "ready" and ready["newcomer"] and since < ready["at"] < until:
            first = [one["at"] for one in notes if one["pid"] == ready["pid"] and one["what"] == "begin"]
            if first:
                yield first[0] - ready["at"]


def undisturbed(options: argparse.Namespace) -> None:
    """Prints the losses of some seeds."""
    losses = []
    for seed in range(options.undisturbed):
        options.seed = seed
        losses.append(ringreduce.run(_alone, 2, config_of(options))[0])
        print(f"seed {seed}: validation loss {losses[-1]:.4f}", flush=True)
    print(f"mean {statistics.fmean(losses):.4f}, from {min(losses):.4f} to {max(losses):.4f}")


def _alone(comm: ringreduce.Communicator, config: Config) -> float:
    torch.set_num_threads(1)
    trainer = Trainer(config, comm)
    while trainer.done < config.steps:
        trainer.step()
    return trainer.evaluate()["validation_loss"]


# --- costs -----------------------------------------------------------------------------------------------------


def costs(options: argparse.Namespace) -> None:
    """Prints what the agreement, the copy of small state, and the copies of shards cost."""
    for line in ringreduce.run(_costs, RANKS, options)[0]:
        print(line)


def _costs(comm: ringreduce.Communicator, options: argparse.Namespace) -> list[str]:
    torch.set_num_threads(1)
    lines = []
    options.sharded = False
    trainer = Trainer(config_of(options), comm)
    plain = _timed(comm, lambda: trainer.step(), 40)
    state = elastic.State(comm, model=trainer.model, optimizer=trainer.optimizer, schedule=trainer.schedule)
    group = elastic.group.Group(state, 1, 60, {}, None)
    group.settle()

    def agree() -> None:
        for _ in range(100):
            group.phase = elastic.group.Phase.OPEN
            group._look, group._looked = False, time.monotonic()
            group.commit()

    agreement = _timed(comm, agree, 20) / 100
    keeping = _timed(comm, lambda: [state.keep() for _ in range(100)], 20) / 100
    comm.pending()  # opens the door
    looking = _timed(comm, lambda: [comm.pending() for _ in range(100)], 20) / 100
    lines.append(
        f"DataParallel step {1e3 * plain:.2f} ms; agreement {1e6 * agreement:.1f} us; keep {1e6 * keeping:.1f} us; "
        f"pending {1e6 * looking:.1f} us"
    )
    module = trainer.module
    for stage in (1, 2):
        found = {}
        made = {copies: _sharded(comm, stage, copies) for copies in (0, 1)}
        times: dict[int, list[float]] = {0: [], 1: []}
        for turn in range(6):
            for copies in ((0, 1), (1, 0))[turn % 2]:
                times[copies].append(_timed(comm, made[copies][0], 10))
        for copies, (_, optimizer) in made.items():
            held = sum(
                value.nbytes
                for part in optimizer._division.parts
                for _, own in part.states()
                for value in own.values()
            ) + sum(
                memory.nbytes for part in optimizer._division.parts for memory in part._gradients.values()
            )
            found[copies] = 1e3 * statistics.median(times[copies]), held / 1e6
        lines.append(
            f"ShardedOptimizer, stage {stage}: update {found[0][0]:.2f} ms and {found[0][1]:.2f} MB without copies, "
            f"{found[1][0]:.2f} ms and {found[1][1]:.2f} MB with one"
        )
    del module
    return lines


def _sharded(comm: ringreduce.Communicator, stage: int, copies: int) -> Any:
    """Returns a function that makes a step from gradients that are there, and its optimizer. 8 million parameters."""
    net = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False) for _ in range(8)))
    model = ringreduce.DataParallel(net, comm) if stage == 1 else net
    optimizer = ringreduce.ShardedOptimizer(
        net.parameters(), torch.optim.AdamW, comm, stage=stage, copies=copies
    )
    x = torch.randn(1, 1000)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step, optimizer


def _timed(comm: ringreduce.Communicator, function: Any, count: int) -> float:
    """Returns the median time of calls that all ranks begin together, of the slowest rank."""
    times = []
    for _ in range(count + 2):
        comm.barrier()
        began = time.monotonic()
        function()
        times.append(time.monotonic() - began)
    slowest = comm.all_reduce(torch.tensor(times, dtype=torch.float64), "max")
    return float(slowest[2:].median())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300, help="stop killing after so many seconds")
    parser.add_argument("--every", type=float, default=20, help="seconds between two deaths")
    parser.add_argument("--steps", type=int, default=0, help="steps of the training; 0: for so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharded", action="store_true", help="use ShardedOptimizer, stage 2")
    parser.add_argument("--undisturbed", type=int, metavar="SEEDS", help="train so often without losses")
    parser.add_argument("--costs", action="store_true", help="measure what elasticity costs")
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--notes", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.notes:
        train(options)
    elif options.undisturbed:
        undisturbed(options)
    elif options.costs:
        costs(options)
    else:
        disturbed(options)


if __name__ == "__main__":
    main()
