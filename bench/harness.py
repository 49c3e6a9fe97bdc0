"""Runs contestants beside each other and keeps their figures comparable.

A contestant is a command that prints one JSON line per size (see peers/protocol.h). All of them run in every
launch, in an order rotated from launch to launch, with a probe of the core-to-core exchange before and after
each. A contestant that fails, hangs or computes wrongly is reported in its cells; the others go on.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROBE = ROOT / "build" / "peers" / "probe"
EXTRA_LAUNCHES = 2


@dataclass(frozen=True)
class Question:
    """What every contestant is asked in one table."""

    collective: str
    ranks: int
    sizes: tuple[int, ...]
    budget: float  # seconds per size

    def options(self, name: str) -> list[str]:
        """The command line that every benchmark program understands."""
        sizes = ",".join(str(size) for size in self.sizes)
        return [
            *("--ranks", str(self.ranks), "--sizes", sizes, "--collective", self.collective),
            *("--budget", str(self.budget), "--library", name),
        ]


@dataclass(frozen=True)
class Contestant:
    name: str
    command: Callable[[Question], list[str]]
    environment: Callable[[Question], dict[str, str]] = lambda question: {}
    needs: tuple[Path, ...] = ()
    kind: str = "peer"  # or "tuned", "ours", "floor"

    def missing(self) -> list[Path]:
        return [path for path in self.needs if not path.exists()]


@dataclass
class Run:
    """One contestant in one launch."""

    launch: int
    contestant: str
    mode: str
    probes_ns: list[float | None]
    lines: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""  # why lines are missing: "timeout", "exit 1", "not installed"
    stderr: str = ""


@dataclass
class Cell:
    """A contestant at one size, over all launches of the table's mode."""

    median_us: float | None = None
    low_us: float | None = None  # the lowest and the highest median of a launch
    high_us: float | None = None
    p25_us: float | None = None
    p75_us: float | None = None
    launches: int = 0
    problem: str = ""
    other_mode: bool = False


def probe() -> tuple[str, float | None]:
    try:
        out = subprocess.run([str(PROBE)], capture_output=True, text=True, timeout=20, check=True).stdout
        line = json.loads(out)
        return str(line["mode"]), line["one_way_ns"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return "unknown", None


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Asked first: an mpirun ends its ranks, which sit in groups of their own; killed, it would leave them.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=5)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _parse(text: str) -> list[dict[str, Any]]:
    lines = []
    for line in text.splitlines():
        if line.startswith("{") and line.rstrip().endswith("}"):
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
    return [line for line in lines if "median_us" in line]


def run_once(
    contestant: Contestant, question: Question, launch: int, timeout: float, probed: bool = True
) -> Run:
    """Not ``probed``: without the probe of the machine's mode, where that does not matter."""
    if contestant.missing():
        return Run(launch, contestant.name, "unknown", [], problem="not installed")
    before, before_ns = probe() if probed else ("unknown", None)
    run = Run(launch, contestant.name, before, [before_ns])
    # Files, not pipes: a rank that outlives its mpirun would keep a pipe open, and us waiting for its end.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {**os.environ, **contestant.environment(question)}
        command = contestant.command(question)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            run.problem = str(error)
            return run
        try:
            code = process.wait(timeout=timeout)
            run.problem = f"exit {code}" if code else ""
        except subprocess.TimeoutExpired:
            run.problem = "timeout"
        finally:
            if process.poll() is None:
                _stop(process)
        out.seek(0)
        err.seek(0)
        run.lines, run.stderr = _parse(out.read()), err.read()[-2000:]
    after, after_ns = probe() if probed else (before, None)
    run.probes_ns.append(after_ns)
    if after != before:
        run.mode = f"{before}-{after}"
    return run


def run_all(
    contestants: Sequence[Contestant], question: Question, launches: int, timeout: float
) -> list[Run]:
    """All contestants, interleaved, starting from another one in each launch."""
    runs: list[Run] = []
    for launch in range(launches):
        shift = launch % len(contestants)
        for contestant in [*contestants[shift:], *contestants[:shift]]:
            runs.append(_announced(contestant, question, launch, timeout))
    # The machine changes its mode as it likes; whoever was never caught in the table's gets more chances.
    for extra in range(launches, launches + EXTRA_LAUNCHES):
        mode = table_mode(runs)
        caught = {run.contestant for run in runs if run.mode == mode or not run.lines}
        late = [contestant for contestant in contestants if contestant.name not in caught]
        runs += [_announced(contestant, question, extra, timeout) for contestant in late]
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return runs


def _announced(contestant: Contestant, question: Question, launch: int, timeout: float) -> Run:
    if sys.stderr.isatty():
        title = f"{question.collective} {question.ranks} ranks, launch {launch + 1}"
        print(f"\r\033[K{title}: {contestant.name}", end="", file=sys.stderr, flush=True)
    run = run_once(contestant, question, launch, timeout)
    if run.problem and run.problem != "not installed":
        print(f"\n{contestant.name}: {run.problem}: {run.stderr.strip()[-400:]}", file=sys.stderr)
    return run


def table_mode(runs: Iterable[Run]) -> str:
    """The mode in which most runs were made; figures of the others are not mixed in."""
    modes = Counter(run.mode for run in runs if run.lines)
    return modes.most_common(1)[0][0] if modes else "unknown"


def _cell(runs: list[Run], nbytes: int, mode: str) -> Cell:
    found = [(run, line) for run in runs for line in run.lines if line["bytes"] == nbytes]
    wrong = sum(line["wrong"] for _, line in found)
    if wrong:
        return Cell(problem=f"{wrong} wrong", launches=len(found))
    if not found:
        return Cell(problem=next((run.problem for run in runs if run.problem), "no figure"))
    same = [line for run, line in found if run.mode == mode]
    lines = same or [line for _, line in found]
    medians = [line["median_us"] for line in lines]
    return Cell(
        median_us=statistics.median(medians),
        low_us=min(medians),
        high_us=max(medians),
        p25_us=statistics.median(line["p25_us"] for line in lines),
        p75_us=statistics.median(line["p75_us"] for line in lines),
        launches=len(lines),
        other_mode=not same,
    )


def merge(runs: Sequence[Run], question: Question) -> dict[str, dict[int, Cell]]:
    """cells[contestant][bytes]: the median over launches of the medians, with the launches' range."""
    mode = table_mode(runs)
    cells: dict[str, dict[int, Cell]] = {}
    for name in dict.fromkeys(run.contestant for run in sorted(runs, key=lambda run: run.launch)):
        own = [run for run in runs if run.contestant == name]
        cells[name] = {nbytes: _cell(own, nbytes, mode) for nbytes in question.sizes}
    return cells


def as_json(question: Question, runs: Sequence[Run], cells: dict[str, dict[int, Cell]]) -> dict[str, Any]:
    return {
        "question": asdict(question),
        "mode": table_mode(runs),
        "cells": {name: {str(n): asdict(cell) for n, cell in row.items()} for name, row in cells.items()},
        "runs": [asdict(run) for run in runs],
    }
