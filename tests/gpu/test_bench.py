"""The benchmarks run: on a card, and on the emulated GPU, whose figures say nothing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slowly

from .emulated_nccl import EMULATED_NCCL
from .probe import HAS_CARD
from .programs import ran
from .ranks import EMULATED_LIBRARY

ROOT = Path(__file__).resolve().parents[2]

EMULATED = {"RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY), "RINGREDUCE_EMULATED_BLOCKS": "4"}


@pytest.fixture(params=["emulated", "card"])
def run(request):
    if request.param == "card" and not HAS_CARD:
        pytest.skip("there is no GPU")
    if request.param == "emulated" and not EMULATED_LIBRARY.exists():
        pytest.skip("not built: make emulated")
    return run_emulated if request.param == "emulated" else run_on_card


def run_on_card(script, *options):
    return table_of(script, options, {"RINGREDUCE_CUDA_LIBRARY": None})


def run_emulated(script, *options, NCCL=""):
    return table_of(script, options, {**EMULATED, "RINGREDUCE_NCCL_LIBRARY": NCCL}, "emulated device")


def table_of(script, options, env, begins=""):
    done = ran(f"bench/{script}", *options, **env)
    assert done.stdout.startswith(begins)
    return [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]


SMALL = ("--ranks=2", "--sizes=4K", "--copy=64K", "--calls=2", "--rounds=2", "--algorithms=auto,ring")


def names_and_times(table):
    assert all(float(row[2].replace(",", "")) > 0 for row in table[2:])
    return [row[1].strip() for row in table[2:]]


@pytest.mark.slow
def test_all_reduce(run, tmp_path):
    figures = tmp_path / "figures.jsonl"
    table = run("gpu/collectives.py", *SMALL, f"--json={figures}")
    ours = ["ringreduce auto", "ringreduce ring", "ringreduce auto, processes"]
    assert [name for name in names_and_times(table) if name.startswith("ringreduce")] == ours
    lines = [json.loads(line)["figure"] for line in figures.read_text().splitlines()]
    assert [one for one in lines if "ringreduce" in one] == [f"2 ranks, {one}" for one in ours]


@pytest.mark.slow
@pytest.mark.skipif(not EMULATED_LIBRARY.exists(), reason="not built: make emulated")
def test_figures_are_kept_where_processes_do_not_answer():
    """Processes come last, and have a time limit of their own."""
    table = run_emulated("gpu/collectives.py", *SMALL, "--process-seconds=0")
    names = names_and_times(table)
    assert "ringreduce ring" in names and not [name for name in names if "processes" in name]


@pytest.mark.skipif(not EMULATED_NCCL.exists(), reason="not built: make emulated")
def test_all_reduce_over_several_gpus_and_nccl():
    table = run_emulated("gpu/collectives.py", *SMALL, "--devices=2", "--peers=nccl", NCCL=str(EMULATED_NCCL))
    assert names_and_times(table) == ["ringreduce auto", "ringreduce ring", "ringreduce nccl"]
    assert [row[4].strip() for row in table[2:]] == [""] * 3  # of the floor


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--processes",), *slowly(())])
def test_copy_engine(run, how, tmp_path):
    figures = tmp_path / "figures.jsonl"
    small = ("--blocks=1", "--sizes=4K", "--copy=64K", "--calls=2", "--rounds=2", "--product=0")
    table = run("gpu/copy_engine.py", *small, *how, f"--json={figures}")
    assert [row[1].strip() for row in table[2:]] == ["all_gather", "all_to_all", "broadcast"]
    assert all(float(time.replace(",", "")) > 0 for row in table[2:] for time in row[2:])
    lines = [json.loads(line)["figure"] for line in figures.read_text().splitlines()]
    assert len(lines) == 2 + 3 * 2 and lines[-1].endswith("broadcast, copy engine"), lines


def test_torch_still_has_what_we_compare_with():
    torch = pytest.importorskip("torch")
    assert importlib.import_module("torch.distributed._symmetric_memory").rendezvous
    for name, inplace in (("one_shot_all_reduce", ""), ("two_shot_all_reduce_", "(a!)")):
        schema = str(getattr(torch.ops.symm_mem, name).default._schema)
        wanted = f"(Tensor{inplace} input, str reduce_op, str group_name) -> Tensor{inplace}"
        assert schema == f"symm_mem::{name}{wanted}"


def test_reduce(run):
    table = run(
        "gpu/reduce.py", "--bytes=64K", "--sources=2,3", "--dtypes=float32", "--wires=int8", "--rounds=2"
    )
    assert len(table) == 2 + 2 + 2 + 1


def test_a_size_that_no_contestant_can_take_ends_the_table():
    program = """
import argparse, sys
sys.path.insert(0, "bench/gpu")
import collectives
def gone(count):
    raise collectives.Unavailable("its time is up")
collectives.compare(argparse.Namespace(sizes=[4, 8], rounds=2), 1.0, [gone])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "4: without its time is up\n"
