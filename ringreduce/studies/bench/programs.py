"""Runs programs that measure themselves, in turns. Every contestant runs in every launch, in rotated order.

A program prints one line of JSON per size (see protocol.py). If a program fails, hangs or computes wrong results, its
own rows report this, and the others continue. The exchange between two cores is probed before and after each turn.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringreduce import _engine
from ringreduce.studies.bench.facts import busy_share
from ringreduce.studies.bench.problem import Problem
from ringreduce.studies.bench.protocol import Effort
from ringreduce.studies.bench.results import Results, Row, machine_facts, merge, mode_of, table_mode

ABSENT = "not installed"
EXTRA_LAUNCHES = 4
EFFORT = Effort()


@dataclass(frozen=True)
class Question:
    """What every program measures in one launch."""

    collective: str
    ranks: int
    sizes: tuple[int, ...]
    budget: float = EFFORT.budget  # seconds per size
    effort: Effort = EFFORT
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0

    def options(self, name: str) -> list[str]:
        """Returns the command line options. All programs accept the first ones, programs in Python also the others."""
        words = {
            "ranks": self.ranks,
            "sizes": ",".join(map(str, self.sizes)),
            "collective": self.collective,
            "budget": self.budget,
            "library": name,
        }
        more = {"dtype": "float32", "op": "sum", "root": 0}
        words |= {key: getattr(self, key) for key, usual in more.items() if getattr(self, key) != usual}
        for key in ("iterations", "warmup", "least", "batch"):
            if (value := getattr(self.effort, key)) != getattr(EFFORT, key):
                words[key] = value
        return [word for key, value in words.items() for word in (f"--{key}", str(value))]

    def timeout(self) -> float:
        """Returns a generous time limit in seconds.

        The slowest programs need a scheduler tick for each call, and rewriting 256 MiB takes seconds.
        """
        return 60 + sum(4 * self.budget + size * self.ranks / 50e6 for size in self.sizes)

    def row(self, name: str, nbytes: int) -> Row:
        about = {"library": name, "collective": self.collective, "ranks": self.ranks, "bytes": nbytes}
        return {**about, "dtype": self.dtype, "op": self.op, "in_place": True}


def question_of(problem: Problem, sizes: list[int], ranks: int, effort: Effort) -> Question:
    """Returns the question for a problem in several sizes."""
    about = problem.dtype, problem.op, problem.root
    return Question(problem.collective, ranks, tuple(sizes), effort.budget, effort, *about)


@dataclass(frozen=True)
class Contestant:
    """A program, with the command that starts it, the paths that it needs, and its kind.

    The kind is "ours", "tuned", "peer" or "floor".
    """

    name: str
    command: Callable[[Question], list[str]]
    environment: Callable[[Question], dict[str, str]] = lambda question: {}
    needs: tuple[Path, ...] = ()
    kind: str = "peer"

    def rows(self, question: Question, timeout: float | None = None) -> list[Row]:
        """Runs the program, and returns a row for each size even if it fails."""
        if not all(path.exists() for path in self.needs):
            lines, problem, last = list[Row](), ABSENT, ""
        else:
            environment = {**os.environ, **self.environment(question)}
            lines, problem, last = run_program(
                self.command(question), environment, timeout or question.timeout()
            )
        found = {line["bytes"]: line for line in lines if "median_us" in line}
        nothing = {"problem": problem or "no figure", "detail": last}
        return [
            # The floor's program reports a collective of its own, "scale".
            {
                **question.row(self.name, nbytes),
                **found.get(nbytes, nothing),
                "kind": self.kind,
                "collective": question.collective,
            }
            for nbytes in question.sizes
        ]


def run_program(
    command: list[str], environment: dict[str, str], timeout: float
) -> tuple[list[Row], str, str]:
    """Runs a program. Returns its rows, how it failed ("timeout", "exit 1" or ""), and its last line of errors."""
    # The output goes to files, because a rank that outlives its mpirun would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return [], str(error), ""
        try:
            code = process.wait(timeout=timeout)
            problem = f"exit {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = "timeout"
        finally:
            _stop(process)
        out.seek(0)
        err.seek(0)
        last = err.read().strip().splitlines()[-1:] if problem else []
        return _objects(out.read()), problem, "".join(last)


def _stop(process: subprocess.Popen[bytes]) -> None:
    # SIGTERM first: it lets mpirun end its ranks, which have process groups of their own and would survive a SIGKILL.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue


def _objects(text: str) -> list[Row]:
    """Returns the lines that are JSON objects."""
    lines = []
    for line in filter(lambda line: line.startswith("{"), text.splitlines()):
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


Turn = Callable[[int], list[Row]]
"""Runs a contestant, or several in one process, in the launch with the given number, and returns the rows."""


@dataclass
class Launches:
    """The rows of all turns, and the results of the probes before and after each turn, in nanoseconds."""

    rows: list[Row] = field(default_factory=list)
    probes: list[float | None] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """The share of the cores' time that other programs took, before each turn."""
    modes: dict[str, Counter[str]] = field(default_factory=dict)
    """The number of launches in each mode in which each turn produced figures."""

    def take(self, name: str, turn: Turn, launch: int, probed: bool = True) -> None:
        before = _engine.probe_exchange() if probed else None
        found = turn(launch)
        after = _engine.probe_exchange() if probed else None
        self.probes += [before, after]
        mode = mode_of(before, after)
        self.rows += [{**row, "launch": launch, "mode": mode} for row in found]
        if any("problem" not in row for row in found):
            self.modes.setdefault(name, Counter())[mode] += 1

    def facts(self) -> dict[str, Any]:
        """Returns the mode of most figures, the first and the last probe, and what other programs took of the cores."""
        first, last = (None if ns is None else round(ns, 1) for ns in (self.probes[0], self.probes[-1]))
        busy = round(100 * statistics.mean(self.busy)) if self.busy else None
        found = {"exchange_before_ns": first, "exchange_after_ns": last, "mode": table_mode(self.rows)}
        return {**found, "busy_percent": busy}


def take_turns(turns: Mapping[str, Turn], launches: int, probed: bool = True) -> Launches:
    """Runs all turns in each launch. Each launch begins with another one.

    If ``probed`` is False, the mode of the machine is not probed.
    """
    done, names = Launches(), list(turns)
    for launch in range(launches):
        shift = launch % len(names)
        for name in [*names[shift:], *names[:shift]]:
            _announce(f"launch {launch + 1} of {launches}: {name}")
            if probed:
                done.busy.append(busy_share())
            done.take(name, turns[name], launch, probed)
    # The machine changes its mode at any time. Contestants with figures in the table's mode from less than half of the
    # launches get more.
    for launch in range(launches, launches + EXTRA_LAUNCHES):
        mode = table_mode(done.rows)
        for name in [name for name, modes in done.modes.items() if 2 * modes[mode] < launches]:
            done.take(name, turns[name], launch, probed)
    _announce("")
    return done


def compare(
    contestants: Sequence[Contestant], question: Question, launches: int, timeout: float | None = None
) -> Results:
    """Measures the same question with all contestants."""
    turns: dict[str, Turn] = {
        one.name: lambda launch, one=one: one.rows(question, timeout)  # type: ignore[misc]
        for one in contestants
    }
    done = take_turns(turns, launches)
    rows = merge(done.rows)
    return Results({**machine_facts(question.ranks), **done.facts()}, rows, refusals(rows))


def refusals(rows: list[Row]) -> list[str]:
    """Returns the reasons why figures are missing, each once."""
    said = (
        ": ".join(filter(None, (row["library"], row["problem"], row.get("detail"))))
        for row in rows
        if "problem" in row
    )
    return list(dict.fromkeys(said))


def _announce(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
