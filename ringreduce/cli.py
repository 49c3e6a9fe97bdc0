"""The command line: ``ringreduce bench``, ``algorithms``, ``explain``, ``simulate``, ``study``, ``tune`` and others."""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
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
from ringreduce.studies import command as studies
from ringreduce.studies.bench import command as bench
from ringreduce.studies.bench import options as bench_options
from ringreduce.text import byte_count, names

MPI_PRELOAD = """\
Prints the path of the library that takes over the collectives of MPI programs. Builds it on first use.

  LD_PRELOAD=$(ringreduce mpi-preload) mpirun -n 4 ./program                 on this host

  mpirun -x LD_PRELOAD=$(ringreduce mpi-preload) -n 4 ./program              Open MPI, other hosts too
  mpirun -genv LD_PRELOAD $(ringreduce mpi-preload) -n 4 ./program           MPICH and Intel MPI, the same
  srun --export=ALL,LD_PRELOAD=$(ringreduce mpi-preload) -n 4 ./program      Slurm, the same

The library is built for the MPI of one mpicc: --mpicc, or MPICC, or the mpicc on the PATH. It must be the MPI that runs
the program. Open MPI's mpirun needs --oversubscribe for more ranks than cores.
"""

ENVIRONMENT = "Lists the environment variables of ringreduce that are set. docs/environment.md describes all."

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
    model = None if options.model is None else studies.study("model").Model.load(options.model)
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
            print("\n".join(studies.study("model.command").explain(nbytes, options, model)))
    if host is not None:
        print("\n".join(host.explain(options.ranks)))
    return 0


def _topology(path: Path) -> cores.HostCores:
    if path.is_dir():
        return cores.of_folder(path)
    try:
        return cores.described(studies.study("settings").load(path))
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


class Version(Action):
    """argparse's own "version" would join the lines."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        print(built.text())
        parser.exit()


def add_explain_options(one: ArgumentParser) -> None:
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


def parser() -> ArgumentParser:
    top = ArgumentParser(
        prog="ringreduce", description="Collective communication you can read, measure and drop in."
    )
    top.add_argument("--version", action=Version, nargs=0, help="show the version and how it was built")
    commands = top.add_subparsers(required=True, metavar="command")

    def command(
        name: str, about: str, description: str, run: Callable[[Namespace], int], usage: str | None = None
    ) -> ArgumentParser:
        one = commands.add_parser(
            name,
            help=about,
            description=description,
            usage=usage,
            formatter_class=RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run)
        return one

    bench_options.add_options(command("bench", "time collectives", bench.DESCRIPTION, bench.run))
    run.add_options(command("run", "start a program as ranks", run.DESCRIPTION, run.run, run.USAGE))
    one = command("algorithms", "list the catalogue", "Lists the algorithms.", algorithms)
    one.add_argument("-c", "--collective", help="list only this collective's algorithms")
    one.add_argument("-n", "--ranks", type=int, help="count rounds and bytes for this number of ranks")
    add_explain_options(
        command(
            "explain", 'what algorithm="auto" picks', 'Says what algorithm="auto" picks, and why.', explain
        )
    )
    studies.add_commands(command)
    diagnose.add_options(
        command("diagnose", "say who holds up a job that hangs", diagnose.DESCRIPTION, diagnose.run)
    )
    command("env", "list the environment variables of ringreduce that are set", ENVIRONMENT, environment_here)
    one = command(
        "mpi-preload", "print the path of the library that speeds up MPI programs", MPI_PRELOAD, mpi_preload
    )
    one.add_argument("--mpicc", help="the compiler wrapper of the MPI (MPICC, or the mpicc on the PATH)")
    command(
        "nccl-preload", "print the path of the library that serves NCCL programs", NCCL_PRELOAD, nccl_preload
    )
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
