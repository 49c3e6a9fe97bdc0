"""Programs that are compared, some of which behave badly, and one protocol in C and in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringreduce.bench import mpi, peers, problem, protocol
from ringreduce.bench.programs import Contestant, Question, compare, take_turns
from ringreduce.bench.report import report
from ringreduce.bench.results import Results, Row, merge

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
QUESTION = Question("all_reduce", 2, (4, 1024), 0.1)
FIGURE = {"median_us": 2.0, "p25_us": 1.0, "p75_us": 3.0, "iterations": 7, "batch": 1, "wrong": 0}


def contestant(name: str, script: str, **options: Any) -> Contestant:
    command = [sys.executable, "-c", f"import json, sys, time\nfigure = {FIGURE!r}\n{script}"]
    return Contestant(name, lambda question: command, **options)


BOTH = "for n in (4, 1024): print(json.dumps({**figure, 'bytes': n}), flush=True)"


def test_bad_contestants_spoil_only_their_own_rows() -> None:
    contestants = [
        contestant("good", BOTH),
        contestant("failing", "sys.exit('what was wrong')"),
        contestant("wrong", "figure['wrong'] = 5\n" + BOTH),
        contestant("partial", "print(json.dumps({**figure, 'bytes': 4}), flush=True); sys.exit('gave up')"),
        contestant("absent", "", needs=(Path("/nonexistent"),)),
        contestant("chatty", "print('{not json}'); print('hello')\n" + BOTH),
        contestant("floor", "figure['collective'] = 'scale'\n" + BOTH, kind="floor"),
    ]
    results = compare(contestants, QUESTION, 1)

    def problem_of(name: str, nbytes: int) -> str:
        row = results.row("all_reduce", nbytes, name)
        assert row is not None
        return str(row["problem"])

    assert [results.us("all_reduce", n, "good") for n in (4, 1024)] == [2.0, 2.0]
    assert problem_of("failing", 4) == "exit 1" and "failing: exit 1: what was wrong" in results.notes
    assert results.us("all_reduce", 4, "wrong") is None
    assert results.us("all_reduce", 4, "partial") == 2.0 and problem_of("partial", 1024) == "exit 1"
    assert problem_of("absent", 4) == "not installed"
    assert results.us("all_reduce", 1024, "chatty") == results.us("all_reduce", 1024, "floor") == 2.0
    text = report(results, "all_reduce", {"good": ["good"]})
    assert "5 wrong" in text and "Not installed or not built: absent." in text


def test_a_hang_ends_with_its_children_and_keeps_what_was_measured(tmp_path: Path) -> None:
    sign = tmp_path / "alive"
    child = f"import time; time.sleep(5); open({str(sign)!r}, 'w')"
    script = (
        f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print(json.dumps({**figure, 'bytes': 4}), flush=True)\ntime.sleep(60)"
    )
    four, more = contestant("hanging", script).rows(QUESTION, timeout=2)
    assert four["median_us"] == 2.0 and more["problem"] == "timeout"
    subprocess.run(["sleep", "4"], check=True)
    assert not sign.exists()


def row(name: str, launch: int, mode: str, median: float) -> Row:
    about = {
        "library": name,
        "collective": "all_reduce",
        "ranks": 2,
        "bytes": 4,
        "launch": launch,
        "mode": mode,
    }
    return {**FIGURE, **about, "median_us": median}


def test_figures_of_two_modes_are_not_mixed() -> None:
    rows = [
        row("a", 0, "near", 1.0),
        row("a", 1, "near", 3.0),
        row("a", 2, "far", 9.0),
        row("b", 2, "far", 8.0),
    ]
    merged = merge([*rows, row("b", 0, "near-far", 7.0), row("c", 0, "near", 5.0)])
    a, b, _ = merged
    assert (a["median_us"], a["low_us"], a["high_us"], a["launches"], a["other_mode"]) == (2, 1, 3, 2, False)
    assert b["other_mode"]
    text = report(Results({}, merged), "all_reduce", {"best": ["a", "c"]})
    assert "7.50*" in text and "3.75" in text


def test_turns_rotate_and_whoever_was_in_another_mode_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = iter([50, 50, 50, 50, 250, 250, 50, 50, 250, 250, 50, 50])
    monkeypatch.setattr("ringreduce.bench.programs._engine.probe_exchange", lambda: next(probes))
    order: list[tuple[str, int]] = []

    def turn(name: str) -> Any:
        return lambda launch: order.append((name, launch)) or [row(name, 0, "", 1.0)]

    done = take_turns({name: turn(name) for name in "abc"}, 1)
    assert order == [("a", 0), ("b", 0), ("c", 0), ("c", 1)]
    assert [each["mode"] for each in done.rows] == ["near", "near", "far", "near"]
    order.clear()
    # b: near, far, changing, so one of three in the table's mode; then far, and near.
    probes = iter([*[50] * 6, *[250, 250], *[50] * 8, *[50, 250], *[250, 250], *[50] * 2])
    take_turns({name: turn(name) for name in "abc"}, 3)
    assert order[9:] == [("b", 3), ("b", 4)]
    order.clear()
    take_turns({name: turn(name) for name in "abc"}, 2, probed=False)
    assert order == [("a", 0), ("b", 0), ("c", 0), ("b", 1), ("c", 1), ("a", 1)]


def install(home: Path, vendor: str) -> Path:
    """An MPI, as far as those look who search for one."""
    (home / "bin").mkdir(parents=True)
    for name, script in [("python", f"echo {vendor}"), ("mpirun", "exit 1")]:
        path = home / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return home


def test_mpis_are_found_in_named_homes_and_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [
        install(tmp_path / name, vendor) for name, vendor in [("a", "mpich"), ("b", "openmpi"), ("c", "impi")]
    ]
    also = install(tmp_path / "d", "mpich")
    monkeypatch.setenv("PATH", f"{homes[2] / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RINGREDUCE_BENCH_MPI", f"{homes[0]}{os.pathsep}{homes[1]}{os.pathsep}{also}")
    found = {one.vendor: one.home for one in peers.installed_mpis()}
    assert found == {"mpich": homes[0], "openmpi": homes[1], "impi": homes[2]}
    monkeypatch.chdir(tmp_path)
    (one, *_) = peers.installed_mpis([Path("d")])
    assert one.mpirun == also / "bin" / "mpirun"
    with pytest.raises(ValueError, match="RINGREDUCE_BENCH_MPI: e has no bin/mpirun"):
        peers.installed_mpis([Path("e")])


C_PROGRAM = """
#include "peers/protocol.h"
int main(void) {
  for (size_t bytes = 4; bytes <= 1 << 22; bytes *= 8)
    for (double call = 1e-7; call < 1; call *= 7) {
      const pr_plan plan = pr_make_plan(bytes, call, 0.5);
      printf("%zu %.17g %d %d\\n", bytes, call, plan.batch, plan.iterations);
    }
  puts("collectives");
  static const char* const holds[] = {"nothing", "whole", "on_root", "own_block", "exchanged",
                                       "up_to_own", "before_own"};
  for (int i = 0; i < PR_SCALE; ++i) {
    const pr_collective one = pr_collectives[i];
    printf("%s %d %s %s\\n", one.name, one.reduces, holds[one.before], holds[one.after]);
  }
  puts("blocks");
  const char* const names[] = {"gather", "gather_v", "all_to_all_v"};
  for (int i = 0; i < 3; ++i) {
    const pr_world world = {1, 3, 0, NULL};
    pr_case c = {.bytes = 48};
    pr_parse_collective(&c, names[i]);
    for (int k = 0; k < 3; ++k)
      if (pr_facts(&c)->before == PR_EXCHANGED)
        printf("%zu %zu\\n", pr_exchange_offset(&world, &c, 1, k), pr_exchanged(&world, &c, 1, k));
      else
        printf("%zu %zu\\n", pr_offset(&world, &c, k), pr_length(&world, &c, k));
  }
  puts("values");
  for (int i = 0; i < 100; ++i) printf("%g %g\\n", pr_value(3, i, 0), pr_value(7, i, 5));
}
"""


def test_the_protocol_is_the_same_in_c_and_in_python(tmp_path: Path) -> None:
    program = tmp_path / "protocol.c"
    program.write_text("#define _GNU_SOURCE\n" + C_PROGRAM)
    subprocess.run(["cc", f"-I{BENCH}", str(program), "-o", str(tmp_path / "protocol")], check=True)
    out = subprocess.run([str(tmp_path / "protocol")], capture_output=True, text=True, check=True).stdout
    plans, out = out.split("collectives\n")
    collectives, out = out.split("blocks\n")
    blocks, values = out.split("values\n")
    for line in plans.splitlines():
        nbytes, call, batch, iterations = line.split()
        assert protocol.plan(int(nbytes), float(call), 0.5) == (int(batch), int(iterations))
    facts = {
        name: (reduces == "1", *holds) for name, reduces, *holds in map(str.split, collectives.splitlines())
    }
    assert facts == problem.FACTS
    asked = [problem.Problem(name, 48) for name in ("gather", "gather_v", "all_to_all_v")]
    assert [[int(word) for word in line.split()] for line in blocks.splitlines()] == [
        [block.start, block.stop - block.start] for one in asked for block in one.blocks(1, 3)
    ]
    expected = np.stack([problem.fill(3, 100, 0), problem.fill(7, 100, 5)], axis=1)
    assert np.array_equal(
        np.array([line.split() for line in values.splitlines()], dtype=np.float32), expected
    )


def test_the_floor_is_measured_and_right(tmp_path: Path) -> None:
    floor = tmp_path / "floor"
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", str(BENCH / "peers" / "floor.c"), "-o", str(floor)], check=True
    )
    command = [str(floor), "--ranks", "3", "--sizes", "4,4096", "--budget", "0.01"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["bytes"], line["wrong"]) for line in lines] == [(4, 0), (4096, 0)]
    assert all(line["p25_us"] <= line["median_us"] <= line["p75_us"] for line in lines)


@pytest.mark.slow
def test_every_collective_of_an_mpi_in_c_is_right(tmp_path: Path) -> None:
    mpicc = ROOT / ".venv-mpich" / "bin" / "mpicc"
    if not mpicc.exists():
        pytest.skip("make bench-peers installs MPICH")
    program = tmp_path / "program"
    source = BENCH / "peers" / "mpi_collectives.c"
    subprocess.run([str(mpicc), "-std=gnu11", "-O2", str(source), "-o", str(program)], check=True)
    start = [*mpi.launcher("mpich", mpicc.with_name("mpirun"), 3), str(program), "--budget", "0.01"]
    environment = {**os.environ, **mpi.environment("mpich", mpicc.parents[1], 3)}
    for name in (*problem.FACTS, *problem.UNEVEN):
        sizes = "0" if name == "barrier" else "12,4800"
        ended = subprocess.run(
            [*start, "--collective", name, "--sizes", sizes], capture_output=True, text=True, env=environment,
            timeout=60, check=True,
        )  # fmt: skip
        rows = [json.loads(line) for line in ended.stdout.splitlines()]
        asked = [int(size) for size in sizes.split(",")]
        assert [(row["collective"], row["bytes"], row["wrong"]) for row in rows] == [
            (name, n, 0) for n in asked
        ]
