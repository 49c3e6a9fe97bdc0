"""Runs the collective benchmarks of OSU and Intel with and without the interposer.

    make mpi-suites OSU=osu-micro-benchmarks-7.4.tar.gz IMB=mpi-benchmarks SUITES_FLAGS='--ranks 2 --only reduce'

Each benchmark runs unmodified, with its own sizes and iterations: alone, with the interposer, and once more with the
interposer and with checked results (OSU's with -c, Intel's compiled with -DCHECK). The exit status is 1 if a result is
wrong, or a benchmark fails or hangs, only with the interposer.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.peers.contestants import ROOT, home_of
from bench.peers.interposer import preload
from ringreduce.bench import mpi
from ringreduce.text import human_bytes

MADE = ROOT / "build" / "mpi-suites"
UTILITIES = ("osu_util", "osu_util_mpi", "osu_util_graph", "osu_util_papi", "osu_util_validation")
CLASSES = (1 << 10, 16 << 10, 256 << 10)  # upper ends of the size classes
COUNTS = re.compile(r"^ringreduce: rank 0: MPI_(\w+): (\d+) served, (\d+) handed on$", re.MULTILINE)
SLOWER = 1.05

Times = dict[tuple[int, int], float]  # by ranks and bytes


@dataclass
class Run:
    """The results of one run of a benchmark."""

    times: Times = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    served: str = ""  # the share of rank 0's calls that the interposer served


@dataclass(frozen=True)
class Benchmark:
    """A program that times one collective.

    Args:
        name: Its name in the suite.
        function: The MPI function that it times, in lower case.
        timed: The command that times it.
        checked: The command that checks results.
        read: Reads times and wrong results from its output.
    """

    name: str
    function: str
    timed: list[str]
    checked: list[str]
    read: Callable[[str, int, Run], None]


# --- the suites ----------------------------------------------------------------------------------------------


def sources(given: str | None, what: str, variable: str, inside: str) -> Path | None:
    """Returns the folder of a suite's sources, which is unpacked if it is in an archive."""
    if not given:
        print(f"{what} is left out; set {variable} to a folder or archive of its sources", file=sys.stderr)
        return None
    path = Path(given).expanduser()
    if path.is_file():
        folder = MADE / path.name.split(".tar")[0]
        if not folder.exists():
            shutil.unpack_archive(path, folder)
        path = folder
    for found in (path, *sorted(path.glob("*"))):
        if (found / inside).is_dir():
            return found
    raise SystemExit(f"{variable}={given} is not {what}: it has no {inside}")


def environment(vendor: str) -> dict[str, str]:
    return os.environ | mpi.environment(vendor, home_of(vendor).home, 1)


def compile_with(vendor: str, *words: object) -> None:
    command = [str(home_of(vendor).home / "bin" / words[0]), *map(str, words[1:])]
    run = subprocess.run(command, env=environment(vendor), capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{words[0]} of {vendor} ended with {run.returncode}: {run.stderr[-2000:]}")


def osu(folder: Path, vendor: str, iterations: int) -> Iterator[Benchmark]:
    made = MADE / vendor / "osu"
    made.mkdir(parents=True, exist_ok=True)
    util = folder / "c" / "util"
    needed = [util / f"{name}.c" for name in UTILITIES]
    for kind in ("blocking", "non_blocking"):
        for source in sorted((folder / "c" / "mpi" / "collective" / kind).glob("osu_*.c")):
            program = made / source.stem
            if not program.exists():
                words = ("-O2", "-w", "-D_GNU_SOURCE", f"-I{util}", source, *needed, "-lm", "-o", program)
                compile_with(vendor, "mpicc", *words)
            timed = [str(program), *(["-i", str(iterations), "-x", "10"] if iterations else [])]
            check = [] if source.stem.endswith("barrier") else ["-c"]
            yield Benchmark(source.stem, source.stem.removeprefix("osu_"), timed, [*timed, *check], read_osu)


def read_osu(text: str, ranks: int, run: Run) -> None:
    sized = "# Size" in text
    for line in text.splitlines():
        words = line.split()
        if len(words) < 1 + sized or not re.fullmatch(r"[\d.]+", words[0]):
            continue
        size = int(words[0]) if sized else 0
        run.times[ranks, size] = float(words[sized])
        if "Fail" in words:
            run.wrong.append(f"wrong at {human_bytes(size)}")


MPI1 = "Allreduce Reduce Reduce_scatter Reduce_scatter_block Allgather Allgatherv Gather Gatherv Scatter Scatterv Alltoall Alltoallv Bcast Barrier".split()  # noqa: E501,SIM905
NBC = [f"I{name.lower()}" for name in MPI1 if name != "Reduce_scatter_block"]


def imb(folder: Path, vendor: str, iterations: int) -> Iterator[Benchmark]:
    bin_ = home_of(vendor).home / "bin"
    made = {}
    for check in (False, True):
        copy = MADE / vendor / ("imb-checked" if check else "imb")
        if not copy.exists():
            shutil.copytree(folder, copy)
        for suite in ("MPI1", "NBC"):
            made[suite, check] = copy / "src_cpp" / f"IMB-{suite}"
            if not made[suite, check].exists():
                flags = "-O2 -w" + " -DCHECK" * check
                words = ["make", "-s", "-C", copy / "src_cpp", "-f", "Makefile", f"TARGET={suite}"]
                words += [
                    f"CC={bin_ / 'mpicc'}",
                    f"CXX={bin_ / 'mpicxx'}",
                    f"CFLAGS={flags}",
                    f"CXXFLAGS={flags}",
                ]
                own = environment(vendor)
                subprocess.run(list(map(str, words)), env=own, check=True, stdout=subprocess.DEVNULL)
    for suite, names in (("MPI1", MPI1), ("NBC", NBC)):
        for name in names:
            few = ["-iter", str(iterations)] if iterations else []
            timed, checked = ([str(made[suite, check]), name, *few] for check in (False, True))
            yield Benchmark(f"IMB {name}", name.lower(), timed, checked, read_imb)


def read_imb(text: str, ranks: int, run: Run) -> None:
    columns: list[str] = []
    ranks_then = ranks
    for line in text.splitlines():
        words = line.split()
        if match := re.match(r"# #processes = (\d+)", line):
            ranks_then = int(match[1])
        elif "#repetitions" in words:
            columns = words
        elif columns and words and re.fullmatch(r"[\d.]+", words[0]) and len(words) == len(columns):
            cells = dict(zip(columns, words, strict=True))
            size = int(cells.get("#bytes", 0))
            if size == 0 and "#bytes" in cells:
                continue
            run.times[ranks_then, size] = float(cells.get("t_avg[usec]") or cells["t_ovrl[usec]"])
            if float(cells.get("defects", 0)) > 0:
                run.wrong.append(f"wrong at {human_bytes(size)} on {ranks_then} ranks")


# --- running them --------------------------------------------------------------------------------------------


def launch(
    command: list[str], vendor: str, ranks: int, library: Path | None, limit: float
) -> tuple[int | None, str]:
    """Runs a command. Returns the exit status, or None if it hangs, and its output."""
    where = home_of(vendor)
    own = os.environ | mpi.environment(vendor, where.home, ranks)
    if library:
        own |= {"LD_PRELOAD": str(library), "RINGREDUCE_MPI_COUNT": "1"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*mpi.launcher(vendor, where.mpirun, ranks), *command],
            env=own, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            code = None
        said.seek(0)
        return code, said.read()


def measure(
    one: Benchmark, command: list[str], ranks: int, started: Callable[..., tuple[int | None, str]]
) -> Run:
    run = Run()
    code, text = started(command)
    one.read(text, ranks, run)
    if code != 0 and not run.wrong:
        run.wrong.append("hangs" if code is None else f"ends with {code}")
        print("\n".join(text.strip().splitlines()[-8:]), file=sys.stderr)
    for function, ours, theirs in COUNTS.findall(text):
        if function.lower() == one.function:
            run.served = f"{int(ours) / (int(ours) + int(theirs)):.0%}"
    return run


def compared(one: Benchmark, vendor: str, ranks: int, library: Path, limit: float) -> int:
    """Runs and prints a benchmark, and returns the number of problems that occur only with the interposer."""
    alone = partial(launch, vendor=vendor, ranks=ranks, library=None, limit=limit)
    loaded = partial(launch, vendor=vendor, ranks=ranks, library=library, limit=limit)
    own, ours = measure(one, one.timed, ranks, alone), measure(one, one.timed, ranks, loaded)
    report(one.name, own, ours)
    wrong = ours.wrong + measure(one, one.checked, ranks, loaded).wrong
    if wrong:
        own.wrong += measure(one, one.checked, ranks, alone).wrong
    for problem in wrong:
        blame = "without the interposer, too" if own.wrong else "WITH THE INTERPOSER ONLY"
        print(f"{one.name} on {ranks} ranks: {problem}, {blame}", flush=True)
    return 0 if own.wrong else len(wrong)


# --- the results ---------------------------------------------------------------------------------------------


def class_of(size: int) -> int:
    return sum(size > end for end in CLASSES)


def report(name: str, own: Run, ours: Run) -> None:
    for ranks in sorted({ranks for ranks, _ in ours.times}):
        found = {
            size: time / own.times[of, size]
            for (of, size), time in ours.times.items()
            if of == ranks and own.times.get((of, size), 0) > 0
        }
        cells = []
        for at in range(len(CLASSES) + 1):
            inside = [ratio for size, ratio in found.items() if class_of(size) == at]
            cells.append(f"{statistics.median(inside):.2f}" if inside else "")
        slower = [f"{human_bytes(size)}: {ratio:.2f}" for size, ratio in found.items() if ratio > SLOWER]
        print(f"| {name} | {ranks} | {' | '.join(cells)} | {ours.served} | {', '.join(slower)} |", flush=True)


def parse_arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--osu", help="folder or archive of OSU's micro-benchmarks, version 7")
    parser.add_argument("--imb", help="folder or archive of the Intel MPI Benchmarks")
    parser.add_argument("--mpi", default="openmpi,mpich", help="MPI libraries")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--only", default="", help="benchmarks whose names match this expression")
    parser.add_argument(
        "--iterations", type=int, default=0, help="iterations, instead of the benchmarks' defaults"
    )
    parser.add_argument("--limit", type=float, default=900, help="time limit of one run in seconds (900)")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    suites = [
        (osu, sources(options.osu, "OSU's suite", "OSU", "c/mpi/collective")),
        (imb, sources(options.imb, "Intel's suite", "IMB", "src_cpp")),
    ]
    if not any(folder for _, folder in suites):
        sys.exit(2)
    wrong = 0
    heads = [f"up to {human_bytes(end)}" for end in CLASSES] + [f"beyond {human_bytes(CLASSES[-1])}"]
    for vendor in options.mpi.split(","):
        library = preload(vendor)
        benchmarks = [
            one for suite, folder in suites if folder for one in suite(folder, vendor, options.iterations)
        ]
        for ranks in map(int, options.ranks.split(",")):
            print(f"\n{vendor}, {ranks} ranks: time with the interposer / the library's own\n")
            print(
                f"| benchmark | ranks | {' | '.join(heads)} | served | slower |\n|---|" + "--:|" * 6 + "---|"
            )
            for one in benchmarks:
                if re.search(options.only, one.name):
                    wrong += compared(one, vendor, ranks, library, options.limit)
    print(f"\n{wrong} wrong results or failures with the interposer only")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
