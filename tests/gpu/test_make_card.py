"""`make card`: what hangs, fails or is not reached is listed by name, and the next run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from .probe import ROOT
from .ranks import EMULATED_LIBRARY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

# A table of parts in place of card_parts.py's: names, what Python they run, and limits.
RUNNER = """
import sys
sys.path.insert(0, "bench")
import card
table = eval(sys.argv[1])
sys.exit(card.main(sys.argv[2:], [card.Part(name, ("{python}", *command), limit) for name, command, limit in table]))
"""
HANGS = """
import os, signal, subprocess, sys, time
def waits_for_ever():
    time.sleep(1000)
print("| begun |", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], preexec_fn=os.setpgrp)
waits_for_ever()
"""
TESTS = """
import pytest
@pytest.mark.parametrize("n", [1, 2, 3])
def test(n):
    assert n != 2
@pytest.mark.skip
def test_that_is_left_out(): pass
"""
BUILD = ("build", ("-c", "pass"), 20)
WORKS = ("works", ("-c", "print('one\\n\\n| two |')"), 20)


def run(folder, table, minutes=1.0):
    command = [sys.executable, "-c", RUNNER, repr(table)]
    command += ["--emulated", f"--minutes={minutes}", f"--folder={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    results = json.loads((folder / "card.json").read_text())
    assert done.returncode == int(
        any(one["status"] not in ("passed", "left out") for one in results.values())
    )
    return {name: one["status"] for name, one in results.items()}, results, done.stdout


def test_a_part_that_hangs_is_killed_with_all_it_started_and_its_stacks_are_kept(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    begin = time.monotonic()
    status, results, out = run(tmp_path, [BUILD, ("hangs", (str(script),), 6), WORKS])
    assert time.monotonic() - begin < 60
    assert status == {"build": "passed", "hangs": "timed out", "works": "passed"}
    assert "timed out: hangs\n" in out
    assert (tmp_path / "card.log").read_text().count("in waits_for_ever") == 2
    assert "| begun |" in results["hangs"]["output"]
    listed = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if str(script) in line and line[0] != "Z"] == []


def test_failures_are_named_and_run_again_after_what_was_not_reached(tmp_path):
    tests = tmp_path / "test_some.py"
    tests.write_text(TESTS)
    pytest_part = ("-m", "pytest", "-p", "no:cacheprovider", "--junitxml={junit}", str(tests))
    failing = ("fails", ("-c", "import sys; sys.exit('no such thing')"), 20)
    table = [BUILD, failing, ("tests", pytest_part, 60), WORKS]
    status, results, out = run(tmp_path, table)
    assert status == {"build": "passed", "fails": "failed", "tests": "failed", "works": "passed"}
    assert results["fails"]["why"] == "exit status 1: no such thing"
    assert [name.split("::")[-1] for name in results["tests"]["failed tests"]] == ["test[2]"]
    assert "2 passed, 1 failed, 1 skipped" in out
    report = (tmp_path / "card.md").read_text()
    assert "Failed: fails; tests.\n" in report and "| two |" in report

    # Mended: what has passed is not run again, and a part that is new comes before what had failed.
    tests.write_text(TESTS.replace("!= 2", "> 0"))
    table = [BUILD, table[1], table[2], ("works", ("-c", "raise SystemExit(1)"), 20), ("new", ("-c", ""), 20)]
    status, results, out = run(tmp_path, table)
    assert status == {
        **{"build": "passed", "fails": "failed", "tests": "passed", "works": "passed"},
        "new": "passed",
    }
    ran = [line.split()[0] for line in out.splitlines() if " s  " in line]
    assert ran == ["build", "new", "fails", "tests"]


def test_what_the_time_does_not_reach_is_next(tmp_path):
    table = [BUILD, ("sleeps", ("-c", "import time; time.sleep(30)"), 60), WORKS]
    status, results, out = run(tmp_path, table, minutes=0.25)
    assert status == {"build": "passed", "sleeps": "not reached", "works": "not reached"}
    assert "not reached: sleeps; works\n" in out and "the time was up" in results["sleeps"]["why"]
    table[1] = ("sleeps", ("-c", ""), 60)
    status, _, _ = run(tmp_path, table)
    assert set(status.values()) == {"passed"}


def test_nothing_runs_that_could_not_be_built(tmp_path):
    status, _, _ = run(tmp_path, [("build", ("-c", "raise SystemExit(2)"), 20), WORKS])
    assert status == {"build": "failed", "works": "not reached"}


def test_results_of_another_card_are_not_gone_on_with(tmp_path):
    other = {"status": "passed", "machine": {"card": "another"}}
    (tmp_path / "card.json").write_text(json.dumps({"works": other, "gone": other}))
    _, results, _ = run(tmp_path, [BUILD, WORKS])
    assert sorted(results) == ["build", "works"] and results["works"]["machine"]["card"] == "emulated GPU"


@pytest.mark.skipif(not EMULATED_LIBRARY.exists(), reason="not built: make emulated")
def test_a_dry_run_on_the_emulated_gpu(tmp_path):
    """From make to the tables: the probe, a file of tests, a benchmark of each kind, and what needs another program."""
    flags = "--no-build --only 'what blocks' '*captures' 'reduce kernels' 'all-reduce, 2*' 'memcheck, card'"
    command = ["make", "card", "EMULATED=1", f"CARD_DIR={tmp_path}", f"CARD_FLAGS={flags}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "card.json").read_text())
    assert results["all-reduce, 2 ranks"]["figures"]["4096"]["ringreduce auto"]
    report = (tmp_path / "card.md").read_text()
    for wanted in (
        "| card | emulated GPU |",
        "| 4,096 | ringreduce auto |",
        "| cudaMemcpyAsync |",
        "| a stream |",
    ):
        assert wanted in report, report
