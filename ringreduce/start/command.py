"""The command ``ringreduce run``. It does not import NumPy, which takes longer than starting ranks."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from ringreduce.hosts import HostSlots, hosts_named
from ringreduce.start.supervisor import start

__all__ = ["DESCRIPTION", "USAGE", "add_options", "main", "run"]

_MOST = 1 << 22  # processes of a host: the kernel's highest pid_max

USAGE = "ringreduce run [-n N] [--hosts A,B] [options] PROGRAM [argument ...]"

DESCRIPTION = """\
Starts a program as the ranks of a job, and ends all ranks when one fails, unless --restarts says otherwise.

  ringreduce run -n 4 train.py --steps 100          four ranks on this host
  ringreduce run -n 2 --hosts node0,node1 train.py  two ranks on each of two hosts, by ssh
  ringreduce run -n 2 -- ./program                  any program
  ringreduce run -n 4 --as-horovod python train.py  a program that imports horovod.torch

The program calls ringreduce.init() or torch.distributed.init_process_group("ringreduce"), and needs no other setup.
Its environment has the variables that torchrun sets, such as RANK. All hosts must have the same folders. If a host has
a core for each of its ranks, each rank gets its own share of the cores.
"""


def add_options(one: ArgumentParser) -> None:
    one.add_argument(
        "-n", "--ranks", type=int, help="the number of ranks on each host (as many as this host has cores)"
    )
    one.add_argument("--hosts", help="hosts that ssh can reach: a,b or a:2,b:4 (this host)")
    one.add_argument(
        "--prefix", action="store_true", help="begin each line that a rank prints with the rank's number"
    )
    one.add_argument("--no-bind", dest="bind", action="store_false", help="let ranks run on all cores")
    one.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="K",
        help="start a rank that fails again, as a newcomer that calls ringreduce.join(), instead of ending the others; "
        "at most K times on each host (0)",
    )
    one.add_argument(
        "--as-horovod",
        action="store_true",
        help="let `import horovod` find ringreduce.horovod, so that programs for Horovod run unchanged",
    )
    one.add_argument(
        "--as-gloo",
        action="store_true",
        help="serve what a program asks torch.distributed's Gloo for (RINGREDUCE_AS=gloo)",
    )
    one.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help="the ssh command, with its options (ssh)"
    )
    one.add_argument(
        "-m",
        dest="module",
        nargs=REMAINDER,
        metavar="MODULE",
        help="the Python module to run, with its arguments",
    )
    one.add_argument(
        "program", nargs=REMAINDER, metavar="PROGRAM", help="a Python file, or a command, with its arguments"
    )


def run(options: Namespace) -> int:
    """Returns the exit status of the first rank that failed, or 0. Raises ValueError for an invalid option."""
    if options.hosts is None:
        places = [HostSlots("", _cores() if options.ranks is None else options.ranks)]
    else:
        places = hosts_named(options.hosts, options.ranks)
    for place in places:
        if place.ranks < 1:
            raise ValueError(f"-n must be at least 1, not {place.ranks}")
        if place.ranks > _MOST:
            raise ValueError(f"-n must be at most {_MOST}, not {place.ranks}")
    if options.restarts < 0:
        raise ValueError(f"--restarts must be 0 or more, not {options.restarts}")
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.module:
        program = ["-m", *options.module]
    if not program:
        raise ValueError("name a program, as in: ringreduce run -n 2 train.py")
    python = program[0] == "-m" or program[0].endswith(".py")
    command = [sys.executable, *program] if python else program
    variables = _as_horovod() if options.as_horovod else {}
    if options.as_gloo:
        variables["RINGREDUCE_AS"] = "gloo"
    return start(
        command,
        places,
        prefix=options.prefix,
        bind=options.bind,
        restarts=options.restarts,
        ssh=options.ssh,
        variables=variables,
        as_horovod=options.as_horovod,
    )


def _as_horovod() -> dict[str, str]:
    """Returns the path on which ranks find a module called horovod before an installed one."""
    folder = Path(__file__).resolve().parents[1] / "frameworks" / "horovod" / "as_horovod"
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def _cores() -> int:
    from ringreduce import _engine

    return int(_engine.usable_cores())


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 2 for an invalid option."""
    parser = ArgumentParser(
        prog="ringreduce run",
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_options(parser)
    try:
        return run(parser.parse_args(arguments))
    except ValueError as error:
        print(f"ringreduce: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
