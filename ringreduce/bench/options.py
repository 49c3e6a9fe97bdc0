"""The options of ``ringreduce bench``, and the plan that follows from them."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import get_args

from ringreduce import schedules
from ringreduce.annotations import Transport
from ringreduce.bench.ours import NO_CHOICE, ROUNDING, TIMED
from ringreduce.bench.peers import HOMES, VENDORS
from ringreduce.bench.problem import BLOCKWISE, EXACT, MESSAGES, Problem, numpy_dtype
from ringreduce.bench.protocol import Effort
from ringreduce.bench.rank import SHARED, Task, plain_name
from ringreduce.bench.report import FORMATS
from ringreduce.bench.run import Plan
from ringreduce.schedules.registry import is_in_a_file

TRANSPORTS = tuple(name for name in get_args(Transport) if name != "auto")
OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")


def byte_count(text: str) -> int:
    """ "4", "8K", "64M" or "1G" in bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"{text!r} is no number of bytes; write 4, 8K, 64M or 1G")
    return int(digits) << units.get(unit, 0)


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def sizes(text: str) -> list[int]:
    """Several with commas."""
    return [byte_count(size) for size in names(text)]


def add_options(parser: ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "-n", "--ranks", type=int, help="ranks to start (2); a launcher's are taken as they are"
    )
    what.add_argument(
        "-c", "--collective", type=names, default=["all_reduce"], metavar="NAMES",
        help=f"several with commas, of {', '.join(TIMED)}",
    )  # fmt: skip
    what.add_argument(
        "-a", "--algorithms", type=names, default=["auto"],
        help='several with commas, or "all"; my.py:function for one of your own; name+shared takes buffers from '
        "ringreduce.empty",
    )  # fmt: skip
    what.add_argument(
        "--wire", type=names, default=[], metavar="FORMATS",
        help=f"each algorithm with quantised messages too, as name+int8: {', '.join(ROUNDING)}",
    )  # fmt: skip
    what.add_argument(
        "--transport", type=names, default=[], metavar="KINDS",
        help=f"each algorithm by each of these, as name@tcp: {', '.join(TRANSPORTS)}",
    )  # fmt: skip
    what.add_argument(
        "-b", "--bytes", "--sizes", dest="sizes", help="bytes of the whole buffer, such as 8,4K,64M"
    )
    what.add_argument("--min", default="8", help="the smallest size, if no sizes are named (8)")
    what.add_argument("--max", default="16M", help="the largest size (16M)")
    what.add_argument("--factor", type=int, default=8, help="from size to size (8)")
    what.add_argument("--dtype", choices=list(EXACT), default="float32", metavar="TYPE", help="float32, ...")
    what.add_argument("--op", choices=OPS, default="sum")
    what.add_argument("--root", type=int, default=0, help="of broadcast, reduce, gather and scatter (0)")
    place = what.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", default=True, help="the default")
    place.add_argument("--out-of-place", action="store_false", dest="in_place")
    what.add_argument(
        "--memory", choices=["ordinary", "shared"], default="ordinary", help="shared: ringreduce.empty"
    )
    what.add_argument("--async", action="store_true", dest="asynchronous", help="through the progress thread")
    who = f"auto (those that are there), none, or of gloo, {', '.join(VENDORS)}; {HOMES} names where MPIs are"
    what.add_argument("--peers", type=names, default=["auto"], help=who)
    what.add_argument("--no-floor", action="store_false", dest="floor", help="leave the floor out")
    _add_how(parser)


def _add_how(parser: ArgumentParser) -> None:
    how = parser.add_argument_group("how, and what comes out")
    how.add_argument("--budget", type=float, default=0.2, metavar="S", help="seconds for each figure (0.2)")
    how.add_argument("--iterations", type=int, help="for each figure, instead of a budget")
    how.add_argument("--launches", type=int, help="of ours and of each MPI, in rotated order")
    how.add_argument("--bind", action=BooleanOptionalAction, default=True, help="give each own rank a core")
    how.add_argument("--check", action=BooleanOptionalAction, default=True, help="check every element")
    how.add_argument("--format", choices=list(FORMATS), default="table")
    how.add_argument("--plot", type=Path, metavar="PNG", help="latency and bus bandwidth against size")
    how.add_argument("--compare", action="store_true", help="all algorithms and peers on 2 and on 4 ranks")
    how.add_argument(
        "--reproducible", action="store_true", help="what the reproducible mode costs, beside auto"
    )
    how.add_argument("--output", type=Path, help="the folder for --compare's plots and JSON (bench/results)")


def problems(options: Namespace, ranks: int) -> list[Problem]:
    """Sizes are rounded up so that every rank has a whole block."""
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
            raise ValueError(f"no collective is called {collective!r}; there are {', '.join(TIMED)}")
        if collective in MESSAGES and ranks < 2:
            raise ValueError(f"{collective} takes at least 2 ranks")
        unit = numpy_dtype(options.dtype).itemsize * (ranks if collective in BLOCKWISE else 1)
        for size in [0] if collective == "barrier" else wanted:
            rounded = -(-size // unit) * unit
            about = options.dtype, options.op, options.in_place, options.root
            found[Problem(collective, rounded, *about)] = None
    if not found:
        raise ValueError("there is no size to measure")
    return list(found)


def read_files(asked: list[str], ranks: int) -> None:
    """Registers the algorithms that are functions in files, and proves them.

    Raises:
        ValueError: there is no such file or function, or what it plans is wrong.
    """
    for name in dict.fromkeys(map(plain_name, asked)):
        if is_in_a_file(name):
            schedules.load(name, world=ranks).heaviest_round(ranks)


def algorithms(asked: list[str], collectives: list[str]) -> dict[str, tuple[str, ...]]:
    """By collective. A name must belong to one of the collectives at least."""
    chosen: dict[str, tuple[str, ...]] = {}
    for collective in collectives:
        choice = () if collective in NO_CHOICE else schedules.algorithms(collective)
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
    """Each algorithm, and then the same in each wire format."""
    for wire in wires:
        if wire not in ROUNDING:
            raise ValueError(f"--wire: there is no {wire!r}, but {', '.join(ROUNDING)}")

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
    """Each algorithm by each transport; without any, by the one that the ranks have."""
    for transport in transports:
        if transport not in TRANSPORTS:
            raise ValueError(f"--transport: there is no {transport!r}, but {', '.join(TRANSPORTS)}")
    if not transports:
        return chosen
    return {
        collective: tuple(f"{name}@{transport}" for transport in transports for name in own)
        for collective, own in chosen.items()
    }


def plan(options: Namespace, ranks: int) -> Plan:
    """The plan for that many ranks.

    Raises:
        ValueError: an option's value is unknown or impossible.
    """
    if ranks < 1:
        raise ValueError("--ranks must be at least 1")
    for name in options.peers:
        if name not in ("auto", "none", "gloo", *VENDORS):
            raise ValueError(f"--peers: nobody is called {name!r}")
    if options.op in ("band", "bor", "bxor") and "float" in options.dtype:
        raise ValueError(f"--op {options.op} takes integers and bool, not {options.dtype}")
    if not 0 <= options.root < ranks:
        raise ValueError(f"--root must be a rank from 0 to {ranks - 1}, not {options.root}")
    for name in ("iterations", "launches"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise ValueError(f"--{name} must be at least 1, not {number}")
    if not 0 <= options.budget < float("inf"):
        raise ValueError(f"--budget must be a number of seconds, not {options.budget:g}")
    if options.plot and set(options.collective) == {"barrier"}:
        raise ValueError("--plot: a barrier has no sizes to plot times against")
    asked = problems(options, ranks)
    # OSU's benchmarks time every call by itself.
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
    return Plan(task, ranks, peers, options.launches)
