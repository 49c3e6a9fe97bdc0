"""The options of ``ringreduce bench``, and the plan that is made from them."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import get_args

from ringreduce import schedules
from ringreduce._engine import reduce
from ringreduce.annotations import OpName, Transport
from ringreduce.schedules.registry import is_in_a_file
from ringreduce.studies.bench.contest import BenchPlan
from ringreduce.studies.bench.ours import NO_CHOICE, ROUNDING, TIMED
from ringreduce.studies.bench.peers import HOMES, VENDORS
from ringreduce.studies.bench.problem import BLOCKWISE, EXACT, MESSAGES, UNEVEN, Problem, numpy_dtype
from ringreduce.studies.bench.protocol import Effort
from ringreduce.studies.bench.rank import SHARED, Task, plain_name
from ringreduce.studies.bench.report import FORMATS
from ringreduce.text import byte_count, names, sizes

TRANSPORTS = tuple(name for name in get_args(Transport) if name != "auto")
OPS = get_args(OpName)


def add_options(parser: ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "-n", "--ranks", type=int, help="number of ranks to start (2); under a launcher, its ranks are used"
    )
    what.add_argument(
        "-c", "--collective", type=names, default=["all_reduce"], metavar="NAMES",
        help=f"one or more, separated by commas: {', '.join(TIMED)}",
    )  # fmt: skip
    what.add_argument(
        "-a", "--algorithms", type=names, default=["auto"],
        help='one or more, separated by commas, or "all"; my.py:function for your own; name+shared allocates the '
        "buffers with ringreduce.empty",
    )  # fmt: skip
    what.add_argument(
        "--wire", type=names, default=[], metavar="FORMATS",
        help=f"also time each algorithm with quantised messages, as name+int8: {', '.join(ROUNDING)}",
    )  # fmt: skip
    what.add_argument(
        "--transport", type=names, default=[], metavar="KINDS",
        help=f"time each algorithm over each of these transports, as name@tcp: {', '.join(TRANSPORTS)}",
    )  # fmt: skip
    what.add_argument(
        "-b", "--bytes", "--sizes", dest="sizes", help="sizes of the whole buffer in bytes, such as 8,4K,64M"
    )
    what.add_argument("--min", default="8", help="smallest size, if --bytes is not given (8)")
    what.add_argument("--max", default="16M", help="largest size (16M)")
    what.add_argument("--factor", type=int, default=8, help="factor from one size to the next (8)")
    what.add_argument("--dtype", choices=list(EXACT), default="float32", metavar="TYPE", help="float32, ...")
    what.add_argument("--op", choices=OPS, default="sum")
    what.add_argument("--root", type=int, default=0, help="root of broadcast, reduce, gather and scatter (0)")
    place = what.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", default=True, help="the default")
    place.add_argument("--out-of-place", action="store_false", dest="in_place")
    what.add_argument(
        "--memory", choices=["ordinary", "shared"], default="ordinary",
        help="shared allocates the buffers with ringreduce.empty",
    )  # fmt: skip
    what.add_argument("--async", action="store_true", dest="asynchronous", help="use the progress thread")
    who = (
        f"auto (all that are installed), none, or some of gloo, {', '.join(VENDORS)}; {HOMES} lists the prefixes "
        "of MPIs"
    )
    what.add_argument("--peers", type=names, default=["auto"], help=who)
    what.add_argument("--no-floor", action="store_false", dest="floor", help="do not measure the floor")
    _add_how(parser)


def _add_how(parser: ArgumentParser) -> None:
    how = parser.add_argument_group("how it is measured, and the output")
    how.add_argument("--budget", type=float, default=0.2, metavar="S", help="seconds for each figure (0.2)")
    how.add_argument("--iterations", type=int, help="iterations for each figure, instead of a budget")
    how.add_argument(
        "--launches", type=int, help="number of launches of ringreduce and of each MPI, in rotated order"
    )
    how.add_argument(
        "--bind", action=BooleanOptionalAction, default=True, help="bind each rank that is started to a core"
    )
    how.add_argument("--check", action=BooleanOptionalAction, default=True, help="check every element")
    how.add_argument("--format", choices=list(FORMATS), default="table")
    how.add_argument("--plot", type=Path, metavar="PNG", help="plot latency and bus bandwidth against size")
    how.add_argument(
        "--compare", action="store_true", help="compare all algorithms and peers on 2 and on 4 ranks"
    )
    how.add_argument("--reproducible", action="store_true", help="compare the reproducible mode with auto")
    how.add_argument("--output", type=Path, help="folder for --compare's plots and JSON (bench/results)")


def problems(options: Namespace, ranks: int) -> list[Problem]:
    """Returns the problems to time. Sizes are rounded up so that every rank has a whole block."""
    if options.sizes:
        wanted = sizes(options.sizes)
    else:
        size, last, factor = byte_count(options.min), byte_count(options.max), options.factor
        if factor < 2:
            raise ValueError("--factor must be at least 2")
        wanted = []
        while size <= last:
            wanted.append(size)
            size *= factor
    found: dict[Problem, None] = {}
    for collective in options.collective:
        if collective not in TIMED:
            raise ValueError(f"no collective is called {collective!r}; choose from {', '.join(TIMED)}")
        if collective in MESSAGES and ranks < 2:
            raise ValueError(f"{collective} needs at least 2 ranks")
        unit = numpy_dtype(options.dtype).itemsize * (ranks if collective in BLOCKWISE else 1)
        for size in [0] if collective == "barrier" else wanted:
            rounded = -(-size // unit) * unit
            about = options.dtype, options.op, options.in_place, options.root
            found[Problem(collective, rounded, *about)] = None
    if not found:
        raise ValueError("there are no sizes to measure")
    return list(found)


def read_files(asked: list[str], ranks: int) -> None:
    """Registers the algorithms that are functions in files, and proves them.

    Raises:
        ValueError: There is no such file or function, or its schedules are wrong.
    """
    for name in dict.fromkeys(map(plain_name, asked)):
        if is_in_a_file(name):
            schedules.load(name, world=ranks).heaviest_round(ranks)


def algorithms(asked: list[str], collectives: list[str]) -> dict[str, tuple[str, ...]]:
    """Returns the algorithms of each collective. Each name must belong to at least one of the collectives."""
    chosen: dict[str, tuple[str, ...]] = {}
    for collective in collectives:
        choice = () if collective in NO_CHOICE else schedules.algorithms(UNEVEN.get(collective, collective))
        known = [entry.name for entry in choice]
        own: list[str] = []
        for name in asked:
            plain = plain_name(name)
            if name == "all":
                own += ["auto", *known]
            elif plain == "auto" or plain in known:
                own.append(name)
        chosen[collective] = tuple(dict.fromkeys(own))
    used = {name for own in chosen.values() for name in own}
    for name in asked:
        if name not in used and name != "all":
            raise ValueError(f"{', '.join(collectives)}: no algorithm is called {name!r}")
    return {collective: own or ("auto",) for collective, own in chosen.items()}


def with_wires(chosen: dict[str, tuple[str, ...]], wires: list[str]) -> dict[str, tuple[str, ...]]:
    """Adds each algorithm in each wire format, after the algorithm itself."""
    for wire in wires:
        if wire not in ROUNDING:
            raise ValueError(f"--wire: there is no format {wire!r}; choose from {', '.join(ROUNDING)}")

    def quantised(name: str, wire: str) -> str:
        plain = name.removesuffix(SHARED)
        return f"{plain}+{wire}{name[len(plain) :]}"

    return {
        collective: own if collective in NO_CHOICE else tuple(
            each for name in own for each in (name, *(quantised(name, wire) for wire in wires))
        )
        for collective, own in chosen.items()
    }  # fmt: skip


def with_transports(chosen: dict[str, tuple[str, ...]], transports: list[str]) -> dict[str, tuple[str, ...]]:
    """Returns each algorithm over each transport. Without transports, it uses the one that the ranks have."""
    for transport in transports:
        if transport not in TRANSPORTS:
            raise ValueError(f"--transport: there is no {transport!r}; choose from {', '.join(TRANSPORTS)}")
    if not transports:
        return chosen
    return {
        collective: tuple(f"{name}@{transport}" for transport in transports for name in own)
        for collective, own in chosen.items()
    }


def plan(options: Namespace, ranks: int) -> BenchPlan:
    """Returns the plan for a number of ranks.

    Raises:
        ValueError: The value of an option is unknown or out of range.
    """
    if ranks < 1:
        raise ValueError("--ranks must be at least 1")
    for name in options.peers:
        if name not in ("auto", "none", "gloo", *VENDORS):
            raise ValueError(f"--peers: there is no peer {name!r}; choose from gloo, {', '.join(VENDORS)}")
    if not reduce.supports(options.dtype, options.op):
        takers = ", ".join(dtype for dtype in EXACT if reduce.supports(dtype, options.op))
        raise ValueError(f"--op {options.op} is not defined for {options.dtype}; choose from {takers}")
    if not 0 <= options.root < ranks:
        raise ValueError(f"--root must be a rank from 0 to {ranks - 1}, not {options.root}")
    for name in ("iterations", "launches"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise ValueError(f"--{name} must be at least 1, not {number}")
    if not 0 <= options.budget < float("inf"):
        raise ValueError(f"--budget must be a number of seconds, not {options.budget:g}")
    if options.plot and set(options.collective) == {"barrier"}:
        raise ValueError("--plot: a barrier has no sizes to plot against")
    asked = problems(options, ranks)
    # OSU's benchmarks time every call separately.
    single = 1 if options.format == "osu" else None
    effort = Effort(options.budget, options.iterations, check=options.check, batch=single)
    read_files(options.algorithms, ranks)
    chosen = with_wires(algorithms(options.algorithms, options.collective), options.wire)
    chosen = with_transports(chosen, options.transport)
    task = Task(
        tuple(asked), chosen, (effort,) * len(asked),
        shared=options.memory == "shared", asynchronous=options.asynchronous, floor=options.floor,
        bind=options.bind,
    )  # fmt: skip
    peers = () if "none" in options.peers else tuple(options.peers)
    return BenchPlan(task, ranks, peers, options.launches)
