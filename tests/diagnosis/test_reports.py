"""Reports at the end and on SIGUSR1, and metrics over HTTP and in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ringreduce import diagnosis
from ringreduce.diagnosis import reporting, stacks
from tests.processes import python

parse_openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser").text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_classic  # noqa: E402

PATIENCE = 200.0
PROGRAM = """
import os, signal, sys, time
import numpy as np
import ringreduce

folder = sys.argv[1]
caught = []
if "before" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
comm = ringreduce.init()
if "after" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
x = np.ones(25, "float32")
for _ in range(4):
    comm.all_reduce(x, algorithm="ring")
open(f"{folder}/ready{comm.rank}", "w").write(str(os.getpid()))

def wait_for(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.02)

if comm.rank == 1:
    wait_for("go")
x[:] = comm.rank + 1
comm.all_reduce(x, algorithm="ring")
assert x.tolist() == [3.0] * 25, x
wait_for("end")
sys.stdout.write(f"caught {caught}\\n")
sys.stdout.flush()
"""


def until(condition):
    limit = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


class Job:
    """Two ranks; the second one comes late, when it is told to."""

    def __init__(self, folder, *arguments, **environment):
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ringreduce", "run", "-n", "2", str(folder / "program.py"), str(folder), *arguments],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=(folder / "errors").open("w"), text=True,
        )  # fmt: skip
        self.pids = [int(until(lambda rank=rank: self._read(f"ready{rank}"))) for rank in range(2)]

    def _read(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    @property
    def errors(self):
        return self._read("errors")

    def go(self):
        (self.folder / "go").touch()

    def end(self):
        self.go()
        (self.folder / "end").touch()
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self.errors
        return out

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.process.kill()
        self.process.wait()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_report_of_every_rank_at_its_end(tmp_path):
    with Job(tmp_path, RINGREDUCE_REPORT="exit") as job:
        assert job.errors == ""
        job.end()
    for rank in range(2):
        assert (
            f"report of rank {rank} (process {job.pids[rank]} on {socket.gethostname()}), at its end"
            in job.errors
        )
        assert f"rank {rank}: a group of 2 ranks over shm" in job.errors
    assert (
        job.errors.count("ring      5    500") == 2
        or len(
            [
                line
                for line in job.errors.splitlines()
                if line.split()[:4] == ["all_reduce", "ring", "5", "500"]
            ]
        )
        == 2
    )


RUN = """
import numpy as np, ringreduce

ringreduce.run(lambda comm: comm.all_reduce(np.ones(3, "float32"), algorithm="ring").tolist(), 2)
"""


def test_a_report_of_ranks_that_run_starts():
    done = python("-c", RUN, timeout=PATIENCE, RINGREDUCE_REPORT="exit")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank}: a group of 2 ranks over shm, closed" in done.stderr
    lines = [line.split()[:4] for line in done.stderr.splitlines()]
    assert lines.count(["all_reduce", "ring", "1", "12"]) == 2


@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_a_report_of_a_rank_that_is_blocked(tmp_path, handler):
    with Job(tmp_path, handler, RINGREDUCE_REPORT="signal") as job:
        if handler == "none":
            while not ("in call #5" in job.errors and "has waited" in job.errors):
                os.kill(job.pids[0], signal.SIGUSR1)  # it may not have begun to wait
                time.sleep(0.3)
            assert "report of rank 0" in job.errors and " s for rank 1" in job.errors
            assert "all_reduce(float32[25], sum) by ring" in job.errors
            assert "thread MainThread" in job.errors and "program.py" in job.errors
        else:
            os.kill(job.pids[0], signal.SIGUSR1)
            os.kill(job.pids[1], signal.SIGUSR1)
            if handler == "before":  # both of them
                until(lambda: "report of rank 0" in job.errors and "report of rank 1" in job.errors)
            time.sleep(0.1)
        out = job.end()
    number = "" if handler == "none" else int(signal.SIGUSR1)
    assert out.count(f"caught [{number}]") == 2, out
    if handler == "after":  # whoever came last decides
        assert "report of rank" not in job.errors


def test_without_a_request_the_signal_is_the_users(tmp_path):
    with Job(tmp_path, "before") as job:
        os.kill(job.pids[0], signal.SIGUSR1)
        os.kill(job.pids[1], signal.SIGUSR1)
        out = job.end()
    assert out.count("caught [") == 2 and "report" not in job.errors


def free_ports():
    """The first of two neighbouring ports that are free now."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def scraped(port):
    asks = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(asks, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return answer.read().decode()


def values(families):
    return {
        (sample.name, sample.labels.get("collective"), sample.labels.get("algorithm"), sample.labels.get("peer")):
        (sample.value, sample.labels)
        for family in families for sample in family.samples
    }  # fmt: skip


def test_metrics_over_http(tmp_path):
    port = free_ports()
    with Job(tmp_path, RINGREDUCE_METRICS=str(port)) as job:
        groups = set()
        for rank in range(2):
            text = scraped(port + rank)
            assert text.endswith("# EOF\n")
            found = values(parse_openmetrics(text))
            calls, labels = found["ringreduce_calls_total", "all_reduce", "ring", None]
            assert calls == (5 if rank == 0 else 4)  # the first one is in its fifth
            assert labels["rank"] == str(rank) and labels["size"] == "2" and labels["transport"] == "shm"
            assert found["ringreduce_array_bytes_total", "all_reduce", "ring", None][0] == calls * 100
            assert found["ringreduce_group_open", None, None, None][0] == 1
            groups.add(labels["group"])
        assert len(groups) == 1
        waited = "ringreduce_peer_wait_seconds_total", None, None
        time.sleep(0.5)
        job.go()
        until(
            lambda: (
                values(parse_openmetrics(scraped(port + 1)))[
                    "ringreduce_calls_total", "all_reduce", "ring", None
                ][0]
                == 5
            )
        )
        mine = until(lambda: values(parse_openmetrics(scraped(port))).get((*waited, "1")))
        theirs = values(parse_openmetrics(scraped(port + 1))).get((*waited, "0"), (0.0, {}))
        assert mine[0] > theirs[0]
        job.end()


def test_a_port_that_is_taken_does_not_end_the_job(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Job(tmp_path, RINGREDUCE_METRICS=str(port)) as job:
            job.end()
    assert f"RINGREDUCE_METRICS: cannot serve metrics on 127.0.0.1:{port}" in job.errors


@pytest.mark.parametrize(("ending", "parse"), [("prom", parse_classic), ("txt", parse_openmetrics)])
def test_metrics_in_a_file(tmp_path, ending, parse):
    pattern = tmp_path / ("ranks{rank}." + ending)
    with Job(tmp_path, RINGREDUCE_METRICS_FILE=str(pattern)) as job:
        paths = [tmp_path / f"ranks{rank}.{ending}" for rank in range(2)]
        for path in paths:
            until(path.exists)
            values(parse(path.read_text()))  # never a part of it
        job.end()
    for rank, path in enumerate(paths):
        calls, labels = values(parse(path.read_text()))["ringreduce_calls_total", "all_reduce", "ring", None]
        assert calls == 5 and labels["rank"] == str(rank)
    left = {path.name for path in tmp_path.iterdir()} - {path.name for path in paths}
    assert left <= {"program.py", "errors", "ready0", "ready1", "go", "end"}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "RINGREDUCE_REPORT",
            "exit,often",
            "RINGREDUCE_REPORT (report) must name exit, signal, answer, not 'often'",
        ),
        (
            "RINGREDUCE_METRICS",
            "http",
            "RINGREDUCE_METRICS (metrics) must be a port or address:port, not 'http'",
        ),
    ],
)
def test_wrong_values_are_named(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        diagnosis.begin(0)
    assert str(caught.value) == says


def test_the_package_for_metrics_is_named(monkeypatch):
    for known in [
        name for name in sys.modules if name.startswith(("prometheus_client", "ringreduce.diagnosis.metrics"))
    ]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delattr(diagnosis, "metrics", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'ringreduce\[metrics\]'"):
        reporting.start(0, metrics=9400)


def test_nothing_is_left_of_a_rank_that_is_killed(tmp_path):
    with Job(tmp_path, RINGREDUCE_REPORT="answer,signal") as job:
        pid = job.pids[1]
        until(lambda: stacks.asked(pid))
        os.kill(pid, signal.SIGKILL)
        until(lambda: f"@ringreduce-report-{pid}" not in Path("/proc/net/unix").read_text().split())
        job.process.wait(PATIENCE)
