"""bench/gpu/visit.py: what hangs, fails or is wrong costs its limit and is named, and all else runs and is kept."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from ringreduce.build.nccl_library import STAND_IN
from tests.conftest import slowly

from .probe import ROOT
from .ranks import EMULATED_LIBRARY

BENCH = ROOT / "bench" / "gpu"
IS_BUILT = EMULATED_LIBRARY.exists() and STAND_IN.exists()
pytestmark = [
    pytest.mark.skipif(not IS_BUILT, reason="not built: make emulated-gpu"),
]

# With a table of steps in place of steps.py's, or in front of some of its steps.
RUNNER = """
import sys
sys.path.insert(0, "bench/gpu")
import steps, visit
from steps import Step

class Table(steps.Table):
    def call_1a(self):
        return eval(sys.argv[1]) + (super().call_1a() if "whole" in sys.argv[2] else [])

sys.exit(visit.main(sys.argv[3:], Table))
"""
HANGS = """
import os, signal, subprocess, sys, time
def waits_for_ever():
    time.sleep(1000)
print("begun", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], preexec_fn=os.setpgrp)
waits_for_ever()
"""
TESTS = """
import os, time
import pytest

def waits_for_ever():
    time.sleep(1000)

@pytest.mark.parametrize("n", range(8))
def test(n):
    if n in (1, 4):
        waits_for_ever()
    if n == 5:
        os._exit(3)
    if n == 6:
        raise OSError("no such thing")
    if n == 3:
        raise RuntimeError("cudaErrorIllegalAddress (700)") if "fails" in os.environ.get("KERNEL", "") else ValueError

def test_that_is_wrong():
    assert 1 == 2, "bits"

@pytest.mark.skip(reason="why not")
def test_that_is_left_out(): pass
"""
MEMCHECK = """#!/bin/sh
echo "memcheck of $*"
while [ "$1" != "${1#-}" ] || [ "$1" = all ] || [ "$1" = 1 ] || [ "$1" = memcheck ]; do shift; done
exec "$@"
"""


@pytest.fixture(scope="session")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    libraries = [EMULATED_LIBRARY, STAND_IN.with_name("libringreduce.so"), STAND_IN]
    subprocess.run([sys.executable, BENCH / "kit.py", folder, *libraries], check=True)
    return folder


def python(name, code, limit=30.0, needs=""):
    return f"Step({name!r}, {limit}, ({sys.executable!r}, '-c', {code!r}), {needs!r})"


def file_of_tests(tmp_path, text=TESTS):
    file = tmp_path / "test_some.py"
    file.write_text(text)
    return f"Step('tests', 90, needs='', tests=({str(file)!r}, '--rootdir', {str(tmp_path)!r}))"


WORKS = python("works", "print('well')")


class Visit:
    """A run of visit.py, and what it has left."""

    def __init__(self, folder, kit, steps, *options, whole=False, built=True, path=""):
        self.folder, self.steps = folder / "results", steps
        table = f"[{', '.join(steps)}]"
        command = [sys.executable, "-c", RUNNER, table, "whole" if whole else "alone", "1a", "--emulated"]
        command += ["--kit", str(kit), "--folder", str(self.folder), "--test-seconds=4", *["--built"] * built]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        )

    def finish(self):
        self.out, _ = self.process.communicate(timeout=200)
        return self

    def lines(self):
        file = self.folder / "results.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def results(self, kind="step"):
        return {line[kind]: line for line in self.lines() if kind in line and "outcome" in line}

    def outcomes(self, kind="step"):
        return {name.split("::")[-1]: line["outcome"] for name, line in self.results(kind).items()}

    def log(self):
        return (self.folder / "log.txt").read_text()

    def wait_for(self, text):
        file, end = self.folder / "results.jsonl", time.monotonic() + 60
        while not file.exists() or text not in file.read_text():
            assert time.monotonic() < end and self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.02)


def running(text):
    listed = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if text in line and line[0] != "Z"]


def test_a_step_that_hangs_is_killed_with_all_it_started_and_its_stacks_are_kept(tmp_path, kit):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    hangs = f"Step('hangs', 4, ({sys.executable!r}, {str(script)!r}), '')"
    visit = Visit(tmp_path, kit, [hangs, WORKS]).finish()
    assert visit.outcomes() == {
        **{"hangs": "hung", "C program, one rank, after a hang": "passed"},
        **{"words of the abort flag": "passed", "works": "passed"},
    }
    assert 4 <= visit.results()["hangs"]["seconds"] < 20
    assert visit.process.returncode == 1 and "Hung: hangs\n" in visit.out
    assert visit.log().count("in waits_for_ever") == 2 and "begun" in visit.log()
    assert "after the abort flag: rank 1" in visit.log()
    assert running(str(script)) == []


@pytest.mark.slow
def test_tests_that_hang_end_or_are_wrong_are_named_and_the_rest_runs(tmp_path, kit):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(MEMCHECK)
    tool.chmod(0o755)
    visit = Visit(tmp_path, kit, [file_of_tests(tmp_path), WORKS], path=tmp_path).finish()
    assert visit.outcomes("test") == {
        **{"test[0]": "passed", "test[1]": "hung", "test[2]": "passed", "test[3]": "failed"},
        **{"test[4]": "hung", "test[5]": "failed", "test[6]": "failed", "test[7]": "passed"},
        **{"test_that_is_wrong": "wrong", "test_that_is_left_out": "skipped"},
    }
    whys = {name.split("::")[-1]: line["why"] for name, line in visit.results("test").items()}
    assert whys["test[6]"] == "OSError: no such thing" and "bits" in whys["test_that_is_wrong"]
    assert whys["test[5]"] == "its process ended: 3"
    assert visit.log().count("in waits_for_ever") == 2
    tests = visit.results()["tests"]
    assert tests["outcome"] == "hung" and "3 passed, 1 skipped, 2 hung, 1 wrong, 3 failed" in tests["why"]
    assert visit.outcomes()["works"] == "passed"
    assert running(str(tmp_path / "test_some.py")) == []
    # The table comes last.
    assert visit.out.rstrip().endswith("|") and "| test_some.py::test[4] | hung |" in visit.out


def test_a_wrong_result_is_looked_at_under_memcheck_at_once(tmp_path, kit):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(MEMCHECK)
    tool.chmod(0o755)
    wrong = python("wrong", "print('rank 1 has a wrong result'); raise SystemExit(1)")
    again = wrong.replace("'wrong'", "'wrong again'")
    visit = Visit(tmp_path, kit, [wrong, again, WORKS], path=tmp_path).finish()
    look = "C program, two ranks under memcheck, after a wrong result"
    assert list(visit.outcomes().items()) == [
        *[("wrong", "wrong"), (look, "passed"), ("wrong again", "wrong"), ("works", "passed")]
    ]
    assert "memcheck of --target-processes all" in visit.log() and "all right" in visit.log()
    assert visit.results()["wrong"]["why"] == "exit status 1: rank 1 has a wrong result"


@pytest.mark.slow
def test_a_process_whose_kernel_has_crashed_runs_no_further_test(tmp_path, kit, monkeypatch):
    monkeypatch.setenv("KERNEL", "fails")
    text = TESTS.replace("(1, 4)", "()").replace("n == 5", "n == 50")
    visit = Visit(tmp_path, kit, [file_of_tests(tmp_path, text)]).finish()
    assert len(visit.results("test")) == 10
    starts = [line for line in visit.lines() if "collected" in line]
    assert [line["collected"] for line in starts] == [10, 6]


def test_what_cannot_be_built_stops_only_what_needs_it(tmp_path, kit):
    (tmp_path / "cmake").write_text("#!/bin/sh\necho there is no such compiler; exit 1\n")
    (tmp_path / "cmake").chmod(0o755)
    steps = [WORKS, python("needs it", "", needs="engine"), python("does not", "", needs="kit")]
    package = {file: file.stat().st_mtime for file in (ROOT / "ringreduce").glob("*.so")}
    visit = Visit(tmp_path, kit, steps, built=False, path=tmp_path).finish()
    assert package == {file: file.stat().st_mtime for file in (ROOT / "ringreduce").glob("*.so")}
    assert visit.outcomes() == {"works": "passed", "needs it": "not reached", "does not": "passed"}
    assert visit.results()["needs it"]["why"] == "the engine could not be built: see build.txt"
    assert "there is no such compiler" in (visit.folder / "build.txt").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, *slowly(signal.SIGTERM)])
def test_results_are_on_disk_as_soon_as_they_are_known(tmp_path, kit, number):
    figure = (
        "import os; from record import append, results; append(results(), figure='x', us=5, pid=os.getpid())"
    )
    waits = f"{figure}; import time; time.sleep(1000)  # {tmp_path}"
    steps = [WORKS, file_of_tests(tmp_path, "def test_first(): pass"), python("waits", waits, 300), WORKS]
    visit = Visit(tmp_path, kit, steps)
    visit.wait_for("figure")
    visit.process.send_signal(number)
    visit.finish()
    assert visit.outcomes() == {"works": "passed", "tests": "passed"}
    assert visit.outcomes("test") == {"test_first": "passed"}
    [figure] = [line for line in visit.lines() if "figure" in line]
    assert figure["us"] == 5
    table = (visit.folder / "table.md").read_text()
    assert "| works | passed |" in table
    if number == signal.SIGTERM:
        assert visit.out.endswith(table + "\n") and "| x | 5 | " in table
        assert running(f"# {tmp_path}") == []
    else:
        os.kill(figure["pid"], signal.SIGKILL)


def test_what_the_time_does_not_reach_is_named_and_comes_first_the_next_time(tmp_path, kit):
    sleeps = python("sleeps", "import time; time.sleep(30)", 60)
    visit = Visit(tmp_path, kit, [WORKS, sleeps, WORKS.replace("works", "last")], "--seconds=12").finish()
    assert visit.outcomes() == {"works": "passed", "sleeps": "cut off", "last": "not reached"}
    assert "Cut off: sleeps\n" in visit.out and "Not reached: last\n" in visit.out
    earlier = tmp_path / "earlier.jsonl"
    (visit.folder / "results.jsonl").rename(earlier)
    steps = [WORKS, python("sleeps", ""), WORKS.replace("works", "last")]
    visit = Visit(tmp_path, kit, steps, "--again", str(earlier)).finish()
    assert list(visit.outcomes().items()) == [("sleeps", "passed"), ("last", "passed"), ("works", "passed")]


def test_eight_files_of_16_mib_come_back(tmp_path, kit):
    steps = [
        python(f"prints {n}", "import sys; sys.stdout.write('begin' + 'x' * (5 << 20) + 'end')")
        for n in range(3)
    ]
    visit = Visit(tmp_path, kit, steps).finish()
    files = list(visit.folder.iterdir())
    assert len(files) <= 8 and all(file.stat().st_size < 1 << 20 for file in files)
    assert visit.log().count("begin") >= 3 and visit.log().count("xend") == 3
    assert visit.log().count("bytes are left out") == 3


def test_a_kit_of_other_sources_is_refused(tmp_path, kit):
    other = tmp_path / "kit"
    other.mkdir()
    (other / "kit.json").write_text(
        json.dumps({**json.loads((kit / "kit.json").read_text()), "sources": "0"})
    )
    visit = Visit(tmp_path, other, [WORKS]).finish()
    assert visit.process.returncode == 2 and "was built from other sources: make card-kit again" in visit.out


def test_modules_are_carried_to_where_they_fit(tmp_path):
    program = """
import sys, pathlib
sys.path.insert(0, "bench/gpu")
import modules
modules.PACKAGE = pathlib.Path(sys.argv[1])
place, archive = modules.PACKAGE / "_torch-2.so", modules.PACKAGE / "modules.tar.gz"
place.write_text("one")
modules.pack(archive)
place.write_text("two")
fits = modules.key
modules.key = lambda: {**fits(), "torch": "another"}
assert not modules.unpacked(archive) and place.read_text() == "two"
modules.key = fits
assert modules.unpacked(archive) and place.read_text() == "one"
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_modules_are_built_on_the_engine_of_the_kit(tmp_path, kit):
    program = """
import sys, pathlib
sys.path.insert(0, "bench/gpu")
import modules
folder = pathlib.Path(sys.argv[2])
modules.PACKAGE, modules.BUILD, modules.SITE = folder / "package", folder / "build", folder / "site"
modules.PACKAGE.mkdir(exist_ok=True)
modules.main()
"""
    command = [sys.executable, "-c", program, kit, tmp_path]
    env = {**os.environ, "RINGREDUCE_VISIT_RESULTS": str(tmp_path / "results")}
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run(command, cwd=ROOT, check=True, env=env)
        told = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
        assert {line["built"] for line in told if line["ok"]} == {"engine", "fronts"} and len(told) == 2
        (tmp_path / "results").unlink()
    assert (tmp_path / "modules.tar.gz").exists()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import _engine; print(_engine.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "package"], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(tmp_path))


def test_torch_finds_its_backend_without_an_installation(tmp_path):
    program = """
import sys, pathlib
sys.path.insert(0, "bench/gpu")
import modules
modules.SITE = pathlib.Path(sys.argv[1])
modules.register()
from importlib import metadata
[found] = metadata.Distribution.at(modules.SITE / "ringreduce-0.dist-info").entry_points
assert (found.group, found.name) == ("torch.backends", "ringreduce")
assert found.value == "ringreduce.frameworks.torch:register"
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True)


DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int* device, int number) { return *device = number; }
int cuGetErrorName(int error, const char** text) { return *text = "CUDA_ERROR_INVALID_VALUE", 0; }
int cuDeviceGetAttribute(int* value, int number, int device) {
  if (number == 132) return 1;
  return *value = number == 20 ? atoi(getenv("MODE")) : number, 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return atoi(getenv("MODE")) ? abort(), 1 : 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("mode", ["0", "3"])
def test_a_process_holds_the_card_unless_it_is_for_one_process_only(tmp_path, mode):
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    command = [sys.executable, BENCH / "facts.py"]
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "MODE": mode}
    how = {"env": env, "text": True, "stdout": subprocess.PIPE}
    facts = subprocess.run(command, check=True, **how).stdout.splitlines()
    assert "multicast: cuDeviceGetAttribute: CUDA_ERROR_INVALID_VALUE" in facts
    assert f"compute mode: {mode}" in facts and "handles, fabric: 128" in facts
    holder = subprocess.Popen([*command, "hold"], stdin=subprocess.PIPE, **how)
    assert holder.stdout.readline() == "yes\n"
    holder.communicate(timeout=200)  # it ends as its stdin does
    assert holder.returncode == 0


@pytest.mark.parametrize("visit", ["1a", "1b", "2a", "2b", "3", "tests"])
@pytest.mark.parametrize("emulated", [False, True])
def test_what_steps_name_is_there(visit, emulated):
    program = """
import sys
sys.path.insert(0, "bench/gpu")
import steps
for step in steps.Table(sys.argv[2] == "True").calls()[sys.argv[1]]:
    print(*(word for word in (*step.command, *step.tests)), sep="\\n")
"""
    command = [sys.executable, "-c", program, visit, str(emulated)]
    words = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [word for word in words if word.endswith(".py")]
    assert files and all((ROOT / file).exists() for file in files)
    modules = [after.replace(".", "/") for word, after in itertools.pairwise(words) if word == "-m"]
    assert all((ROOT / f"{module}.py").exists() for module in modules)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dry_run_of_the_first_visit_with_faults(tmp_path, kit):
    """From the C program to the tables, with a hang, wrong bits and a test that hangs among the steps."""
    steps = [
        python("hangs", "import time; time.sleep(1000)", 3),
        python("wrong", "raise SystemExit('wrong result')"),
        file_of_tests(tmp_path),
    ]
    options = ("--seconds=500", "--test-seconds=60")
    visit = Visit(tmp_path, kit, steps, *options, whole=True)
    visit.out, _ = visit.process.communicate(timeout=550)
    outcomes = visit.outcomes()
    mine = {"hangs": "hung", "wrong": "wrong", "tests": "hung"}
    assert {name: outcomes[name] for name in mine} == mine
    others = {name: one for name, one in outcomes.items() if name not in mine}
    assert len(others) > 15 and set(others.values()) <= {"passed", "left out"}, visit.out
    assert others["C program, 8 thread ranks"] == others["ranks"] == others["what blocks"] == "passed"
    assert any(line.get("figure") == "4 ranks, ringreduce auto" for line in visit.lines())
