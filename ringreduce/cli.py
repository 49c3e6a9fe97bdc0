"""The command line: ``ringreduce bench``, ``algorithms``, ``explain``, ``simulate``, ``study``, ``tune`` and others."""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce import _engine, cores, environment
from ringreduce.build import facts as built
from ringreduce.build import nccl_library
from ringreduce.descriptors import drop_output
from ringreduce.diagnosis import command as diagnose
from ringreduce.frameworks import mpi as interposer
from ringreduce.plotting import PlotError
from ringreduce.start import command as run
from ringreduce.studies.bench import command as bench
from ringreduce.studies.bench import options as bench_options
from ringreduce.text import byte_count, names

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

MPI_PRELOAD = """\
Prints the path of the library that takes over the collectives of MPI programs. Builds it on first use.

  LD_PRELOAD=$(ringreduce mpi-preload) mpirun -n 4 ./program                 on this host

  mpirun -x LD_PRELOAD=$(ringreduce mpi-preload) -n 4 ./program              Open MPI, other hosts too
  mpirun -genv LD_PRELOAD $(ringreduce mpi-preload) -n 4 ./program           MPICH and Intel MPI, the same
  srun --export=ALL,LD_PRELOAD=$(ringreduce mpi-preload) -n 4 ./program      Slurm, the same

The library is built for the MPI of one mpicc: --mpicc, or MPICC, or the mpicc on the PATH. It must be the MPI that runs
the program. Open MPI's mpirun needs --oversubscribe for more ranks than cores.
"""

NCCL_PRELOAD = """\
Prints the path of the library that loads in place of libnccl.so.2, for programs written for NCCL.

  LD_PRELOAD=$(ringreduce nccl-preload) ./program
"""


def algorithms(options: Namespace) -> int:
    rows = ringreduce.algorithms(options.collective, options.ranks)
    counted = options.ranks is not None
    for row in rows:
        rounds = str(row.measured_rounds) if counted else row.rounds
        sent = f"{row.measured_bytes:.4g} S" if counted else row.bytes
        line = f"{row.collective:15} {row.name:20} rounds {rounds:28} bytes {sent:28} {row.restrictions}"
        print(line.rstrip())
    return 0


def explain(options: Namespace) -> int:
    if options.model is not None and options.transport != "shm":
        raise ValueError(f"--model predicts only for --transport shm, not {options.transport}")
    model = None if options.model is None else study("model").Model.load(options.model)
    host = _topology(options.topology) if options.topology is not None else None
    crowded = None if host is None else options.ranks > host.count
    for text in names(options.bytes):
        nbytes = byte_count(text)
        name, slice_bytes, _, reason = _engine.choose(
            options.collective, nbytes, options.ranks, options.transport, crowded
        )
        print(f"{options.collective} of {text} on {options.ranks} ranks over {options.transport}: {name}")
        print(f"  in slices of {slice_bytes} bytes; {reason}")
        if options.model is not None:
            print("\n".join(study("model.command").explain(nbytes, options, model)))
    if host is not None:
        print("\n".join(host.explain(options.ranks)))
    return 0


def _topology(path: Path) -> cores.HostCores:
    if path.is_dir():
        return cores.of_folder(path)
    try:
        return cores.described(study("settings").load(path))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def environment_here(options: Namespace) -> int:
    for name, value in environment.set_here(os.environ).items():
        print(f"{name}={value}")
    for complaint in environment.complaints(os.environ):
        print(f"ringreduce: {complaint}", file=sys.stderr)
    return 0


def mpi_preload(options: Namespace) -> int:
    try:
        print(interposer.path(options.mpicc))
    except (RuntimeError, TimeoutError) as error:
        text = str(error)
        print(text if text.startswith("ringreduce: ") else f"ringreduce: {text}", file=sys.stderr)
        return 1
    return 0


def nccl_preload(options: Namespace) -> int:
    print(nccl_library.STAND_IN)
    return 0


def study(module: str) -> Any:
    """Imports a module that needs ringreduce[study]. This is slow, so only the commands that need it do so."""
    try:
        return importlib.import_module(f"ringreduce.{module}")
    except ImportError as error:
        raise ValueError(f"{error}; install ringreduce[study]") from error


def simulate(options: Namespace) -> int:
    return int(study("simulate.command").run(options))


def plan(options: Namespace) -> int:
    return int(study("plan.command").run(options))


def fit(options: Namespace) -> int:
    return int(study("model.command").fit_model(options))


def tune(options: Namespace) -> int:
    return int(study("model.command").tune(options))


def schedule(options: Namespace) -> int:
    return int(study("study.report.command").run(options))


def add_measuring_options(parser: ArgumentParser, budget: float) -> None:
    parser.add_argument("-n", "--ranks", type=int, default=2, help="the number of ranks to start (2)")
    parser.add_argument(
        "--budget", type=float, default=budget, metavar="S", help=f"seconds for each measurement ({budget})"
    )


def synthesise(options: Namespace) -> int:
    return int(study("synthesis.command").run(options))


def run_study(options: Namespace) -> int:
    return int(study("study.command").run(options))


def add_study_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="PLAN", help="a plan, or: compare A B, or: report FOLDER")
    parser.add_argument("--folder", type=Path, help="the study's folder (the plan's name with -study)")
    parser.add_argument("--budget", type=float, metavar="S", help="total seconds, instead of the plan's")
    parser.add_argument("--all", action="store_true", help="with compare: also show what has not changed")
    parser.set_defaults(run=run_study)


def add_simulate_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-a", "--algorithm", type=names, default=["all"],
        help='names from the catalogue, separated by commas, or "all"',
    )  # fmt: skip
    parser.add_argument("-c", "--collective", default="all_reduce")
    parser.add_argument(
        "-b",
        "--bytes",
        type=names,
        default=["64M"],
        help="sizes of the whole buffer, such as 8,4K,64M",
    )
    parser.add_argument("-n", "--world", type=int, help="the number of ranks, instead of the network's")
    parser.add_argument(
        "--network", type=Path, required=True, metavar="FILE",
        help="hosts, links and costs in TOML, or the JSON file of a cost model",
    )  # fmt: skip
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the jitter")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--picture", type=Path, metavar="PNG", help="draw what cores and links do in one simulation"
    )
    parser.add_argument("--trace", type=Path, metavar="JSON", help="write the same for Perfetto")
    parser.set_defaults(run=simulate)


def add_plan_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="JOB CLUSTER",
        help="two files in TOML or JSON, or: record PROGRAM -- ARGUMENTS",
    )
    parser.add_argument("--samples", type=int, help="with record: the samples (or tokens) of a step")
    parser.add_argument("--unit", default="samples", help='with record: what is counted ("samples")')
    parser.add_argument(
        "-o", "--output", type=Path, help="with record: the job's file (the program's name with .json)"
    )
    parser.add_argument(
        "-s",
        "--strategy",
        type=names,
        default=["exact"],
        help='strategies, separated by commas, "all", or "exact": those that train as one process would (exact)',
    )
    parser.add_argument("-n", "--world", type=names, default=[], help="numbers of ranks, such as 8,64,256")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--search",
        action="store_true",
        help="try all settings of each strategy on the largest number of ranks, and show its best one",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report, with scaling curves")
    parser.add_argument(
        "--trace", type=Path, metavar="JSON", help="write a step of the fastest strategy for Perfetto"
    )
    parser.set_defaults(run=plan)


class Version(Action):
    """argparse's own "version" would join the lines."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        print(built.text())
        parser.exit()


def parser() -> ArgumentParser:
    top = ArgumentParser(
        prog="ringreduce", description="Collective communication you can read, measure and drop in."
    )
    top.add_argument("--version", action=Version, nargs=0, help="show the version and how it was built")
    commands = top.add_subparsers(required=True, metavar="command")
    one = commands.add_parser(
        "bench",
        help="time collectives",
        description=bench.DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    bench_options.add_options(one)
    one.set_defaults(run=bench.run)
    one = commands.add_parser(
        "run",
        help="start a program as ranks",
        usage=run.USAGE,
        description=run.DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    run.add_options(one)
    one = commands.add_parser("algorithms", help="list the catalogue", description="Lists the algorithms.")
    one.add_argument("-c", "--collective", help="list only this collective's algorithms")
    one.add_argument("-n", "--ranks", type=int, help="count rounds and bytes for this number of ranks")
    one.set_defaults(run=algorithms)
    one = commands.add_parser(
        "schedule",
        help="print or draw what each rank does in each round",
        description="Proves an algorithm's schedules, and prints or draws what each rank does in each round.",
    )
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
    one.set_defaults(run=schedule)
    one = commands.add_parser(
        "explain",
        help='what algorithm="auto" picks',
        description='Says what algorithm="auto" picks, and why.',
    )
    one.add_argument("-b", "--bytes", required=True, help="sizes of the whole buffer, such as 8,4K,64M")
    one.add_argument("-n", "--ranks", type=int, default=2)
    one.add_argument("-c", "--collective", default="all_reduce")
    one.add_argument(
        "--transport",
        choices=bench_options.TRANSPORTS,
        default="shm",
        help="the transport between the ranks (shm)",
    )
    one.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="a model from ringreduce fit: also predict each algorithm's time, over shm",
    )
    one.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="the cores of another host, in TOML, or a folder with a copy of its /sys: also say where ranks run",
    )
    one.set_defaults(run=explain)
    one = commands.add_parser(
        "simulate",
        help="time algorithms on a described network",
        description=SIMULATE,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_simulate_options(one)
    one = commands.add_parser(
        "plan",
        help="predict how fast a model trains on a cluster",
        description=PLAN,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_plan_options(one)
    one = commands.add_parser(
        "synthesise",
        help="make an all-reduce for a network",
        description=SYNTHESISE,
        formatter_class=RawDescriptionHelpFormatter,
    )
    one.add_argument("-n", "--world", type=int, help="the number of ranks, instead of the network's")
    one.add_argument(
        "-b",
        "--bytes",
        type=names,
        default=["1K", "64K", "1M", "16M", "64M"],
        help="sizes of the buffer",
    )
    one.add_argument("--network", type=Path, required=True, metavar="FILE", help="hosts and links in TOML")
    one.set_defaults(run=synthesise)
    one = commands.add_parser(
        "study",
        help="measure which algorithm wins where, with intervals",
        description=STUDY,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_study_options(one)
    one = commands.add_parser(
        "fit",
        help="fit a cost model to this machine, for predictions",
        description="Fits a cost model to measured all-reduces. It starts ranks on this host, or uses the ranks of "
        "torchrun, mpirun or srun. ringreduce simulate --network FILE then predicts other all-reduces.",
    )
    one.add_argument(
        "model", type=Path, nargs="?", metavar="FILE", help="the file to write (one in the user's cache)"
    )
    one.add_argument(
        "--training",
        action="store_true",
        help="measure as training calls collectives: shared buffers, the progress thread",
    )
    add_measuring_options(one, 0.03)
    one.set_defaults(run=fit)
    one = commands.add_parser(
        "tune",
        help='find what algorithm="auto" should pick here',
        description='Makes the table that algorithm="auto" uses on this machine, in a few minutes. The table is kept '
        "in the user's cache. RINGREDUCE_TUNING can name another table, or be off.",
    )
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
    add_measuring_options(one, 0.05)
    one.set_defaults(run=tune)
    one = commands.add_parser(
        "diagnose",
        help="say who holds up a job that hangs",
        description=diagnose.DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    diagnose.add_options(one)
    one = commands.add_parser(
        "env",
        help="list the environment variables of ringreduce that are set",
        description="Lists the environment variables of ringreduce that are set. docs/environment.md describes all.",
    )
    one.set_defaults(run=environment_here)
    one = commands.add_parser(
        "mpi-preload",
        help="print the path of the library that speeds up MPI programs",
        description=MPI_PRELOAD,
        formatter_class=RawDescriptionHelpFormatter,
    )
    one.add_argument("--mpicc", help="the compiler wrapper of the MPI (MPICC, or the mpicc on the PATH)")
    one.set_defaults(run=mpi_preload)
    one = commands.add_parser(
        "nccl-preload",
        help="print the path of the library that serves NCCL programs",
        description=NCCL_PRELOAD,
        formatter_class=RawDescriptionHelpFormatter,
    )
    one.set_defaults(run=nccl_preload)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if results are wrong or a build fails, 2 for an invalid option."""
    options = parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except (ValueError, PlotError) as error:
        print(f"ringreduce: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return drop_output()
