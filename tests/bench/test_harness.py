"""The benchmark harness with contestants that behave badly, and one protocol in C and in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path[:0] = [str(BENCH), str(ROOT / "ringreduce" / "bench")]

import harness  # noqa: E402
import protocol  # noqa: E402
import report  # noqa: E402

QUESTION = harness.Question("all_reduce", 2, (4, 1024), 0.1)
FIGURE = {"median_us": 2.0, "p25_us": 1.0, "p75_us": 3.0, "iterations": 7, "batch": 1, "wrong": 0}


def contestant(name: str, script: str, **options: object) -> harness.Contestant:
    command = [sys.executable, "-c", f"import json, sys, time\nfigure = {FIGURE!r}\n{script}"]
    return harness.Contestant(name, lambda question: command, **options)  # type: ignore[arg-type]


def cells_of(*contestants: harness.Contestant, timeout: float = 20) -> dict[str, dict[int, harness.Cell]]:
    return harness.merge(harness.run_all(contestants, QUESTION, 1, timeout), QUESTION)


BOTH = "for n in (4, 1024): print(json.dumps({**figure, 'bytes': n}), flush=True)"


def test_bad_contestants_spoil_only_their_own_cells() -> None:
    cells = cells_of(
        contestant("good", BOTH),
        contestant("failing", "sys.exit(3)"),
        contestant("wrong", "figure['wrong'] = 5\n" + BOTH),
        contestant("partial", "print(json.dumps({**figure, 'bytes': 4}), flush=True); sys.exit('gave up')"),
        contestant("absent", "", needs=(Path("/nonexistent"),)),
        contestant("chatty", "print('{not json}'); print('hello')\n" + BOTH),
    )
    assert [cells["good"][n].median_us for n in (4, 1024)] == [2.0, 2.0]
    assert cells["failing"][4].problem == "exit 3"
    assert cells["wrong"][4].problem == "5 wrong" and cells["wrong"][4].median_us is None
    assert cells["partial"][4].median_us == 2.0 and cells["partial"][1024].problem == "exit 1"
    assert cells["absent"][4].problem == "not installed"
    assert cells["chatty"][1024].median_us == 2.0


def test_a_hang_ends_with_its_children_and_keeps_what_was_measured(tmp_path: Path) -> None:
    sign = tmp_path / "alive"
    child = f"import time; time.sleep(5); open({str(sign)!r}, 'w')"
    script = (
        f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print(json.dumps({**figure, 'bytes': 4}), flush=True)\ntime.sleep(60)"
    )
    cells = cells_of(contestant("hanging", script), timeout=2)
    assert cells["hanging"][4].median_us == 2.0
    assert cells["hanging"][1024].problem == "timeout"
    subprocess.run(["sleep", "4"], check=True)
    assert not sign.exists()


def run(name: str, launch: int, mode: str, median: float) -> harness.Run:
    line = {**FIGURE, "bytes": 4, "median_us": median}
    return harness.Run(launch, name, mode, [50.0, 50.0], [line])


def test_figures_of_two_modes_are_not_mixed() -> None:
    runs = [
        run("a", 0, "near", 1.0),
        run("a", 1, "near", 3.0),
        run("a", 2, "far", 9.0),
        run("b", 2, "far", 8.0),
    ]
    runs.append(run("b", 0, "near-far", 7.0))
    question = harness.Question("all_reduce", 2, (4,), 0.1)
    cells = harness.merge([*runs, run("c", 0, "near", 5.0)], question)
    assert (cells["a"][4].median_us, cells["a"][4].launches, cells["a"][4].other_mode) == (2.0, 2, False)
    assert cells["b"][4].other_mode
    text = report.report(question, runs, cells, {"best": ["a", "c"]})
    assert "7.50*" in text and "3.75" in text


C_PROGRAM = """
#include "peers/protocol.h"
int main(void) {
  for (size_t bytes = 4; bytes <= 1 << 22; bytes *= 8)
    for (double call = 1e-7; call < 1; call *= 7) {
      const pr_plan plan = pr_make_plan(bytes, call, 0.5);
      printf("%zu %.17g %d %d\\n", bytes, call, plan.batch, plan.iterations);
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
    plans, values = out.split("values\n")
    for line in plans.splitlines():
        nbytes, call, batch, iterations = line.split()
        assert protocol.plan(int(nbytes), float(call), 0.5) == (int(batch), int(iterations))
    expected = np.stack([protocol.fill(3, 100, 0), protocol.fill(7, 100, 5)], axis=1)
    assert np.array_equal(
        np.array([line.split() for line in values.splitlines()], dtype=np.float32), expected
    )


def test_the_floor_is_measured_and_right(tmp_path: Path) -> None:
    floor = tmp_path / "floor"
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", str(BENCH / "peers" / "floor.c"), "-o", str(floor)], check=True
    )
    command = [str(floor), "--ranks", "3", "--sizes", "4,4096", "--budget", "0.01"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["bytes"], line["wrong"]) for line in lines] == [(4, 0), (4096, 0)]
    assert all(line["p25_us"] <= line["median_us"] <= line["p75_us"] for line in lines)
