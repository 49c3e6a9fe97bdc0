"""Programs for Horovod run unchanged under ``ringreduce run --as-horovod``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringreduce import horovod
from tests.forked import forked, launched_ranks
from tests.processes import on_ranks_of_a_command

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]

NAMES = """
import horovod, horovod.torch as hvd
import horovod.torch.optimizer
import ringreduce.horovod.torch as ours
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compression
from horovod.torch.mpi_ops import allreduce_async, synchronize
assert hvd is ours and horovod.torch is ours
assert hvd.__name__ == ours.__spec__.name == "ringreduce.frameworks.horovod.torch"
assert HorovodInternalError is hvd.HorovodInternalError and ProcessSet is hvd.ProcessSet
assert Compression is hvd.Compression and synchronize is hvd.synchronize
assert horovod.__version__.startswith("0.28")
hvd.init()
import sys
sys.stdout.write(f"{hvd.size()} {hvd.rank()}\\n")
"""
SOME = """
import horovod.torch as hvd, os, sys
try:
    hvd.init([2, 0])
    sys.stdout.write(f"{os.environ['RANK']}: {hvd.rank()} of {hvd.size()}\\n")
except ValueError as error:
    sys.stdout.write(f"{error}\\n")
"""
MISSING = """
import importlib
for name in ("horovod.torch.elastic", "horovod.mxnet", "horovod.spark.torch", "horovod.torch.nothing"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
try:
    from horovod.torch import elastic
except ImportError as error:
    print(error)
import horovod.torch as hvd
print(hasattr(hvd, "elastic"))
"""


def ran(*words, **variables):
    return on_ranks_of_a_command("--as-horovod", *words, timeout=200, OMP_NUM_THREADS="1", **variables)


def as_run(ranks, code):
    """What the ranks of a program print, forked as ``ran`` would start them. They need not import torch again."""

    def main():
        torch.set_num_threads(1)
        sys.path.insert(0, str(Path(horovod.__file__).parent / "as_horovod"))
        exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})

    found = forked(main, ["program.py"], launched_ranks(ranks))
    assert [done.stderr for done in found if done.returncode] == []
    return [done.stdout for done in found]


def test_an_unchanged_program():
    """With one rank and with two, the same batches give the same losses."""
    program = ROOT / "examples/horovod_torch.py"
    assert len(program.read_text().splitlines()) <= 60
    assert "ringreduce" not in program.read_text().split('"""')[2]
    alone, together, _ = (
        [float(line.rpartition(" ")[2]) for line in said.splitlines()]
        for ranks in (1, 2)
        for said in as_run(ranks, program.read_text())
    )
    assert len(alone) == 20
    assert alone == pytest.approx(together, rel=1e-3)


@pytest.mark.slow
def test_an_unchanged_program_under_the_launcher():
    done = ran("-n", 2, sys.executable, ROOT / "examples/horovod_torch.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 20


@pytest.mark.slow
def test_names_lead_to_the_same_modules(tmp_path):
    """Also if a Horovod is installed, and if the program has a path of its own."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text("raise ImportError('the wrong one')")
    (tmp_path / "program.py").write_text(NAMES)
    done = ran("-n", 2, tmp_path / "program.py", PYTHONPATH=f"{tmp_path}/lib:{tmp_path}")
    # A file's own folder comes before the path.
    assert "the wrong one" in done.stderr
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "program.py").rename(tmp_path / "elsewhere/program.py")
    done = ran("-n", 2, tmp_path / "elsewhere/program.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["2 0", "2 1"]


def test_init_with_some_of_the_ranks():
    said = as_run(3, SOME)
    assert said == ["0: 1 of 2\n", "rank 1 is not in the list of ranks [2, 0]\n", "2: 0 of 2\n"]


def test_what_is_missing_is_named():
    (said,) = as_run(1, MISSING)
    elastic, mxnet, spark, nothing, again, has = said.splitlines()
    assert elastic == again
    assert "no horovod.torch.elastic" in elastic
    assert "torchrun --max-restarts" in elastic
    assert "ringreduce has no horovod.mxnet;" in mxnet
    assert "ringreduce has no horovod.spark;" in spark
    assert "ringreduce has no horovod.torch.nothing;" in nothing
    assert has == "False"


def test_without_the_option_nothing_is_put_on_the_path():
    code = "import sys, importlib.util as u; print([p for p in sys.path if 'as_horovod' in p])"
    done = on_ranks_of_a_command("-n", 1, sys.executable, "-c", code)
    assert done.stdout == "[]\n", done.stderr


PLACES = """
import os
names = "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"
line = " ".join(os.environ[f"HOROVOD_{name}"] for name in names)
os.write(1, line.encode() + bytes([10]))  # at once, because all ranks write to one pipe
assert os.environ["HOROVOD_HOSTNAME"]
"""


def test_the_variables_that_horovodrun_sets(tmp_path):
    done = ran("-n", 2, sys.executable, "-c", PLACES)
    assert sorted(done.stdout.splitlines()) == ["0 2 0 2 0 1", "1 2 1 2 0 1"], done.stderr
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    done = ran("--hosts", "a:1,b:2,c:2", "--ssh", ssh, sys.executable, "-c", PLACES)
    wanted = ["0 5 0 1 0 3", "1 5 0 2 1 3", "2 5 1 2 0 2", "3 5 0 2 2 3", "4 5 1 2 1 2"]
    assert sorted(done.stdout.splitlines()) == wanted, done.stderr


def test_variables_of_horovod_reach_other_hosts(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec env -u HOROVOD_CYCLE_TIME sh -c "$*"\n')
    ssh.chmod(0o755)
    code = "import horovod, os; print(os.environ['HOROVOD_CYCLE_TIME'], 'as_horovod' in horovod.__file__)"
    words = ["--hosts", "here:1", "--ssh", str(ssh), sys.executable, "-c", code]
    done = ran(*words, HOROVOD_CYCLE_TIME="3")
    assert done.stdout == "3 True\n", done.stderr
