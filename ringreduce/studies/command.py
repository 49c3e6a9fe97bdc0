"""The commands that need ringreduce[study], with their options. Their modules are imported when a command runs."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ringreduce.text import names

__all__ = ["add_commands", "study"]

SIMULATE = """\
Times algorithms on a described network. Nothing is sent.

  ringreduce simulate --network cluster.toml -n 4096                   every all-reduce, 64 MiB, on 4,096 ranks
  ringreduce simulate --network cluster.toml -a ring -b 1M --picture ring.png --trace ring.json

An example of cluster.toml follows. docs/studies.md describes all kinds of networks and all keys.

  [network]
  kind = "fat_tree"
  hosts = 512
  ranks_per_host = 8
  hosts_per_leaf = 32
  oversubscription = 2
  rate = "100 Gbit/s"
  latency_us = 1
"""

SYNTHESISE = """\
Makes the all-reduces that algorithm="synthesised" runs, for a described network. Nothing is sent.

  ringreduce synthesise --network cluster.toml -b 64K,16M

Prints the rate that no all-reduce along spanning trees can exceed, the links that limit it, the numbers of trees that
come close, and the predicted fastest choice for each size. docs/studies.md describes the file.
"""

PLAN = """\
Predicts how fast a job trains on a cluster with each strategy, and what bounds it. Nothing runs.

  ringreduce plan job.toml cluster.toml                     exact strategies on the whole cluster
  ringreduce plan job.toml cluster.toml -n 8,64,256         on several numbers of ranks
  ringreduce plan job.json cluster.toml -s zero2:bucket_mb=50,data_parallel:accumulation=4
  ringreduce plan job.toml cluster.toml --search            find the best sizes of buckets, within a rank's memory
  ringreduce plan job.toml cluster.toml --html plan.html --trace step.json
  ringreduce plan --samples 32 record train.py              record a job from a training program, in train.json

docs/planning.md describes both files, and the strategies with their settings.
"""

STUDY = """\
Measures which algorithm wins where, and whether the difference is real.

  ringreduce study                            all-reduce on 2 and 4 ranks of this host, in about five minutes
  ringreduce study plan.toml --folder mine    measure what the plan names; run it again to continue
  ringreduce study report mine                write mine/report.html
  ringreduce study compare old new            show what changed between two studies
  mpirun -n 8 ringreduce study plan.toml      measure one launch on mpirun's ranks; run it several times

An example of plan.toml follows. docs/studies.md lists all keys.

  algorithms = ["ring", "tree", "swing"]
  sizes = ["4K", "64K", "1M"]
  worlds = [2, 4]
  budget_s = 60
"""

FIT = """\
Fits a cost model to measured all-reduces. It starts ranks on this host, or uses the ranks of torchrun, mpirun or srun.
ringreduce simulate --network FILE then predicts other all-reduces.
"""

TUNE = """\
Makes the table that algorithm="auto" uses on this machine, in a few minutes. The table is kept in the user's cache.
RINGREDUCE_TUNING can name another table, or be off.
"""

SCHEDULE = "Proves an algorithm's schedules, and prints or draws what each rank does in each round."


def study(module: str) -> Any:
    """Imports a module that needs ringreduce[study]. Raises ValueError if that is not installed."""
    try:
        return importlib.import_module(f"ringreduce.{module}")
    except ImportError as error:
        raise ValueError(f"{error}; install ringreduce[study]") from error


def _run(module: str, function: str, options: Namespace) -> int:
    return int(getattr(study(module), function)(options))


def add_commands(command: Callable[..., ArgumentParser]) -> None:
    """Adds the commands by ``command(name, help, description, run)``, which returns the parser of one."""
    for name, about, description, add_options, module, function in (
        (
            "schedule",
            "print or draw what each rank does in each round",
            SCHEDULE,
            _schedule,
            "study.report",
            "run",
        ),
        ("simulate", "time algorithms on a described network", SIMULATE, _simulate, "simulate", "run"),
        ("plan", "predict how fast a model trains on a cluster", PLAN, _plan, "plan", "run"),
        ("synthesise", "make an all-reduce for a network", SYNTHESISE, _synthesise, "synthesis", "run"),
        ("study", "measure which algorithm wins where, with intervals", STUDY, _study, "study", "run"),
        ("fit", "fit a cost model to this machine, for predictions", FIT, _fit, "model", "fit_model"),
        ("tune", 'find what algorithm="auto" should pick here', TUNE, _tune, "model", "tune"),
    ):
        add_options(command(name, about, description, partial(_run, f"{module}.command", function)))


def _schedule(one: ArgumentParser) -> None:
    one.add_argument(
        "algorithm", help="a name from the catalogue, or a function in a file: my.py:ring_of_pairs"
    )
    one.add_argument("-c", "--collective", default="all_reduce")
    one.add_argument("-n", "--ranks", type=int, default=4)
    one.add_argument(
        "--hosts", type=int, default=1, help="the number of hosts that the ranks are divided among (1)"
    )
    one.add_argument(
        "--picture", type=Path, metavar="SVG", help="draw which rank sends which chunk to which rank"
    )


def _simulate(one: ArgumentParser) -> None:
    one.add_argument(
        "-a", "--algorithm", type=names, default=["all"],
        help='names from the catalogue, separated by commas, or "all"',
    )  # fmt: skip
    one.add_argument("-c", "--collective", default="all_reduce")
    one.add_argument(
        "-b",
        "--bytes",
        type=names,
        default=["64M"],
        help="sizes of the whole buffer, such as 8,4K,64M",
    )
    one.add_argument("-n", "--world", type=int, help="the number of ranks, instead of the network's")
    one.add_argument(
        "--network", type=Path, required=True, metavar="FILE",
        help="hosts, links and costs in TOML, or the JSON file of a cost model",
    )  # fmt: skip
    one.add_argument("--root", type=int, default=0)
    one.add_argument("--seed", type=int, default=0, help="the seed of the jitter")
    one.add_argument("--format", choices=["table", "json"], default="table")
    one.add_argument(
        "--picture", type=Path, metavar="PNG", help="draw what cores and links do in one simulation"
    )
    one.add_argument("--trace", type=Path, metavar="JSON", help="write the same for Perfetto")


def _plan(one: ArgumentParser) -> None:
    one.add_argument(
        "what",
        nargs="*",
        metavar="JOB CLUSTER",
        help="two files in TOML or JSON, or: record PROGRAM -- ARGUMENTS",
    )
    one.add_argument("--samples", type=int, help="with record: the samples (or tokens) of a step")
    one.add_argument("--unit", default="samples", help='with record: what is counted ("samples")')
    one.add_argument(
        "-o", "--output", type=Path, help="with record: the job's file (the program's name with .json)"
    )
    one.add_argument(
        "-s",
        "--strategy",
        type=names,
        default=["exact"],
        help='strategies, separated by commas, "all", or "exact": those that train as one process would (exact)',
    )
    one.add_argument("-n", "--world", type=names, default=[], help="numbers of ranks, such as 8,64,256")
    one.add_argument("--format", choices=["table", "json"], default="table")
    one.add_argument(
        "--search",
        action="store_true",
        help="try all settings of each strategy on the largest number of ranks, and show its best one",
    )
    one.add_argument("--html", type=Path, metavar="FILE", help="write a report, with scaling curves")
    one.add_argument(
        "--trace", type=Path, metavar="JSON", help="write a step of the fastest strategy for Perfetto"
    )


def _synthesise(one: ArgumentParser) -> None:
    one.add_argument("-n", "--world", type=int, help="the number of ranks, instead of the network's")
    one.add_argument(
        "-b",
        "--bytes",
        type=names,
        default=["1K", "64K", "1M", "16M", "64M"],
        help="sizes of the buffer",
    )
    one.add_argument("--network", type=Path, required=True, metavar="FILE", help="hosts and links in TOML")


def _study(one: ArgumentParser) -> None:
    one.add_argument("what", nargs="*", metavar="PLAN", help="a plan, or: compare A B, or: report FOLDER")
    one.add_argument("--folder", type=Path, help="the study's folder (the plan's name with -study)")
    one.add_argument("--budget", type=float, metavar="S", help="total seconds, instead of the plan's")
    one.add_argument("--all", action="store_true", help="with compare: also show what has not changed")


def _fit(one: ArgumentParser) -> None:
    one.add_argument(
        "model", type=Path, nargs="?", metavar="FILE", help="the file to write (one in the user's cache)"
    )
    one.add_argument(
        "--training",
        action="store_true",
        help="measure as training calls collectives: shared buffers that caches have lost, the progress thread",
    )
    _add_measuring(one, 0.03)


def _tune(one: ArgumentParser) -> None:
    one.add_argument(
        "-c", "--collective", type=names, default=["all_reduce", "reduce_scatter", "all_gather"],
        help="names, separated by commas (all_reduce,reduce_scatter,all_gather)",
    )  # fmt: skip
    one.add_argument("-b", "--bytes", type=names, help="sizes of the whole buffer (64 B to 64 MiB)")
    one.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="a model from ringreduce fit (the one in the cache, or a new one)",
    )
    one.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (one in the user's cache)"
    )
    _add_measuring(one, 0.05)


def _add_measuring(one: ArgumentParser, budget: float) -> None:
    one.add_argument("-n", "--ranks", type=int, default=2, help="the number of ranks to start (2)")
    one.add_argument(
        "--budget", type=float, default=budget, metavar="S", help=f"seconds for each measurement ({budget})"
    )
