"""Measures training between two hosts at 50 Mbit/s: DiLoCo and others beside synchronous data parallelism.

    python3 -m bench.training.low_communication --keep folder               # trains, keeps the losses there, measures
    python3 -m bench.training.low_communication --keep folder --rate 1gbit   # only measures
    python3 -m bench.training.low_communication --keep folder --every 500    # with the paper's number of local steps
    python3 -m bench.training.low_communication --ddp 300                   # compares with torch's DDP

A small GPT (ringreduce.train) learns to predict the bytes of Python's sources. As in the paper of DiLoCo, all methods
begin with a model that has been trained synchronously for some time. Synchronous training then makes 2,000 steps, and
the others 2,700, in whole rounds: they are to reach the same loss, not to make the same number of steps. There are two
parts:

- losses: whole trainings of every method on two ranks of this machine, over shared memory. The arithmetic is that of
  two hosts, because there is only one order in which to add the numbers of two ranks.
- times: short trainings between the two hosts of hosts.py. Synchronous steps are timed one by one, the other methods in
  whole rounds, each with its synchronisations. The bytes are those that the network's interface has counted.

The columns:

- loss, x synchronous: the loss on held-out bytes after all steps, and its ratio to synchronous data parallelism's.
- steps, sent: the steps after the common beginning, and the megabytes that a rank sends in them: those of a step times
  the steps.
- ms a step, s: the mean time of a step on the slower rank, and this times the steps.
- faster: synchronous data parallelism's seconds divided by these.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # imported once, before ranks are forked
from torch.nn.parallel import DistributedDataParallel

import ringreduce
from bench.network.hosts import Hosts
from bench.training.between_hosts import add_rank_options, joined, printed, sent
from bench.turns import add_json_option, keep
from ringreduce import elastic
from ringreduce.text import markdown
from ringreduce.train.config import Config, replace
from ringreduce.train.parallel import with_exchange
from ringreduce.train.trainer import Trainer

SYNCHRONOUS = "synchronous"
BEGINNING = 1000  # synchronous steps before the comparison
STEPS, LOCAL_STEPS = 2000, 2700  # after it
DILOCO: dict[str, Any] = {"low_communication": "diloco"}
STREAMING = {**DILOCO, "low_communication": "streaming_diloco", "fragments": 4, "overlap": 10}
METHODS: dict[str, dict[str, Any]] = {
    SYNCHRONOUS: {},
    "LocalSGD": {"low_communication": "local_sgd"},
    "DiLoCo": DILOCO,
    "DiLoCo int8": {**DILOCO, "wire": "int8"},
    "streaming": STREAMING,
    "streaming int8": {**STREAMING, "wire": "int8"},
}
CONFIG = Config(
    layers=2, heads=4, width=128, context=32, text_bytes=4 << 20, batch=8, warmup=100, learning_rate=2e-3,
    evaluate_samples=2048, timeout=120, threads=1,
)  # fmt: skip
LIMIT = 170.0  # seconds for the timed steps


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="50mbit", help="rate of a host's link, in tc's notation (50mbit)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, default=150, help="local steps of a round, H in the papers (150)"
    )
    parser.add_argument("--steps", type=int, default=LOCAL_STEPS, help=f"local steps ({LOCAL_STEPS})")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds (2)")
    parser.add_argument("--timed", type=int, default=20, help="timed synchronous steps (20)")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the common beginning and the losses")
    parser.add_argument("--only-losses", action="store_true", help="do not measure the times")
    parser.add_argument(
        "--ddp", type=int, default=0, metavar="STEPS", help="only compare DataParallel and torch's DDP"
    )
    add_json_option(parser)
    add_rank_options(parser)
    options = parser.parse_args()
    if SYNCHRONOUS not in options.methods:
        parser.error(f"--methods must include {SYNCHRONOUS}")
    options.steps = -(-options.steps // options.every) * options.every
    return options


def steps_of(name: str, options: Namespace) -> int:
    """Returns the number of steps after the common beginning."""
    steps: int = STEPS if name == SYNCHRONOUS else options.steps
    return steps


# --- losses --------------------------------------------------------------------------------------------------


def training(
    comm: Any, config: Config, state: dict[str, Any] | None, until: int
) -> tuple[float, dict[str, Any]]:
    """Returns the loss on held-out bytes after a number of steps, and the trainer's state."""
    torch.set_num_threads(1)
    trainer = Trainer(config, comm)
    if state is not None:
        trainer.load_state_dict(state)
    while trainer.done < until:
        trainer.step()
    return trainer.evaluate()["validation_loss"], trainer.state_dict()


def config_of(name: str, options: Namespace) -> Config:
    steps = BEGINNING + steps_of(name, options)
    return replace(CONFIG, steps=steps, seed=options.seed, local_steps=options.every, **METHODS[name])


def losses(options: Namespace, folder: Path) -> dict[str, float]:
    """Returns the loss of each method: what the folder holds, or after a training."""
    kept, beginning = folder / f"losses-{options.seed}.json", folder / f"beginning-{options.seed}.pt"
    found: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    keys = {name: key_of(name, options) for name in options.methods}
    if not beginning.exists():
        config = config_of(SYNCHRONOUS, options)
        _, state = ringreduce.run(training, 2, config, None, BEGINNING, timeout=CONFIG.timeout)[0]
        torch.save(state, beginning)
    for name, key in keys.items():
        if key not in found:
            config, state = config_of(name, options), torch.load(beginning)
            ranks = ringreduce.run(training, 2, config, state, config.steps, timeout=CONFIG.timeout)
            found[key] = ranks[0][0]
            print(f"{key}: {found[key]:.4f}", file=sys.stderr, flush=True)
            kept.write_text(json.dumps(found, indent=2))
    return {name: found[key] for name, key in keys.items()}


def key_of(name: str, options: Namespace) -> str:
    """Returns the name of a training in the file of losses."""
    return name if name == SYNCHRONOUS else f"{name}, H = {options.every}, {options.steps} steps"


def beside_ddp(comm: Any, options: Namespace) -> list[tuple[float, list[Any]]]:
    """Returns loss and parameters after synchronous steps, with DataParallel and with DDP over our backend."""
    torch.set_num_threads(1)
    elastic.init_process_group(comm)
    found = []
    for wrap in (with_exchange, lambda _, module, __: DistributedDataParallel(module)):
        with mock.patch("ringreduce.train.trainer.with_exchange", wrap):
            trainer = Trainer(replace(CONFIG, steps=options.ddp, seed=options.seed), comm)
        for _ in range(options.ddp):
            trainer.step()
        loss = trainer.evaluate()["validation_loss"]
        found.append((loss, [one.detach().clone() for one in trainer.module.parameters()]))
    torch.distributed.destroy_process_group()
    return found


def compare_with_ddp(options: Namespace) -> None:
    (ours, own), (theirs, ddps) = ringreduce.run(beside_ddp, 2, options, timeout=CONFIG.timeout)[0]
    same = all(torch.equal(one, other) for one, other in zip(own, ddps, strict=True))
    bits = "the same bits" if same else "other bits"
    print(
        f"after {options.ddp} steps: loss {ours:.6f} with DataParallel, {theirs:.6f} with DDP; {bits} in the weights"
    )


# --- times ---------------------------------------------------------------------------------------------------


def rank(options: Namespace) -> None:
    """Runs one of the ranks. The first one prints a line for each method."""
    torch.set_num_threads(1)
    with joined(options, 2, 60.0) as (comm, meeting):
        for name in options.methods:
            h = options.every
            trainer = Trainer(replace(CONFIG, steps=10**6, local_steps=h, **METHODS[name]), comm)
            warm, steps = (3, options.timed) if name == SYNCHRONOUS else (h, options.rounds * h)
            for _ in range(warm):  # memory is allocated, and fragments get under way
                trainer.step()
            meeting.barrier()
            sent_before, began = sent(options.interface), time.perf_counter()
            for _ in range(steps):
                trainer.step()
            torch.cat([one.detach().flatten() for one in trainer.module.parameters()]).sum().item()
            seconds = float(meeting.maximum([time.perf_counter() - began])[0])
            bytes_sent = sent(options.interface) - sent_before
            if options.rank == 0:
                count = sum(one.numel() for one in trainer.module.parameters())
                line = {"seconds": seconds / steps, "bytes": bytes_sent / steps, "parameters": count}
                print(json.dumps({"method": name, **line}), flush=True)


def times(options: Namespace) -> dict[str, dict[str, Any]]:
    """Returns seconds and bytes of a step of each method, over the link."""
    words = ["--methods", *options.methods, "--rounds", str(options.rounds)]
    words += ["--timed", str(options.timed), "--every", str(options.every)]
    with Hosts(2, options.rate) as hosts:
        lines = printed(hosts, "bench.training.low_communication", words, LIMIT)
    return {line["method"]: line for line in lines}


# --- tables --------------------------------------------------------------------------------------------------


def tables(options: Namespace, loss: dict[str, float], time_of: dict[str, dict[str, Any]]) -> tuple[str, str]:
    head = [
        "",
        "steps",
        "loss",
        "x synchronous",
        "sent, MB",
        "1 / of synchronous",
        "ms a step",
        "s",
        "faster",
    ]
    rows, goals = [head], [["goal", "bytes <= 1/100", "time <= 1/10", "loss <= 1.01 x"]]
    spent = {name: (steps_of(name, options), time_of[name]) for name in options.methods}
    total = {name: (steps * one["bytes"], steps * one["seconds"]) for name, (steps, one) in spent.items()}
    for name, (steps, one) in spent.items():
        fewer, faster = (base / own for base, own in zip(total[SYNCHRONOUS], total[name], strict=True))
        worse = loss[name] / loss[SYNCHRONOUS]
        sizes = [f"{total[name][0] / 1e6:,.1f}", f"{fewer:.0f}"]
        times = [f"{1e3 * one['seconds']:.1f}", f"{total[name][1]:.1f}", f"{faster:.1f}"]
        rows.append([name, f"{steps:,}", f"{loss[name]:.4f}", f"{worse:.4f}", *sizes, *times])
        if name != SYNCHRONOUS:
            met = (fewer >= 100, faster >= 10, worse <= 1.01)
            goals.append([name, *("yes" if one else "NO" for one in met)])
    return markdown(rows), markdown(goals)


def main() -> None:
    options = parse_arguments()
    if options.rank is not None:
        rank(options)
        return
    if options.ddp:
        compare_with_ddp(options)
        return
    if not options.only_losses and (reason := Hosts.permitted()):
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        loss = losses(options, place)
    if options.only_losses:
        return
    time_of = times(options)
    rows, goals = tables(options, loss, time_of)
    parameters = time_of[SYNCHRONOUS]["parameters"]
    model = f"a GPT of {parameters:,} parameters, batch {CONFIG.batch}, seed {options.seed}"
    print(
        f"2 hosts, {options.rate}, {model}, H = {options.every}, after {BEGINNING:,} synchronous steps\n\n{rows}"
        f"\n\n{goals}"
    )
    keep(options, "low_communication", [{"losses": loss, "times": time_of, "rate": options.rate}])


if __name__ == "__main__":
    main()
