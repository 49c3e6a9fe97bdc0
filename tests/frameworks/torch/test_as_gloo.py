"""RINGREDUCE_AS=gloo, with programs that do not know of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slowly
from tests.processes import metronome, within

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("programs_for_gloo.py")
ROOT = Path(__file__).parents[3]
WAYS = 8


def environment(**more):
    given = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    return {**given, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(*options, program="every_way", **more):
    command = [sys.executable, "-m", "ringreduce", "run", "-n", "2", *options, str(PROGRAM), program]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=200)


def test_every_way_to_ask_for_gloo():
    done = run("--as-gloo", RINGREDUCE_LOG="info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['torch_backend'" + ", 'torch_backend'" * (WAYS - 1) + ", 'gloo']") == 2
    assert "serves a process group of 2 ranks that asked for gloo" in done.stderr


@pytest.mark.slow
def test_without_the_switch_it_is_gloo():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "torch_backend" not in done.stdout and done.stdout.count("'gloo']") == 2


@pytest.mark.slow
def test_torchs_wrapper_of_groups():
    done = run("--as-gloo", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_with_horovod_and_in_spawned_processes():
    done = run("--as-gloo", "--as-horovod", program="with_horovod")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['torch_backend', ('torch_backend', True)]") == 2


def ranks(world, switched):
    """Starts ranks, of which some have the switch. Returns of each when it arrived, when it failed and its error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    for rank in range(world):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        place |= {"RINGREDUCE_AS": "gloo"} if rank in switched else {}
        command = [sys.executable, str(PROGRAM), "with_some_ranks_switched"]
        started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**place)
            )
        )
    metronome.start(one.pid for one in started)
    try:
        outputs = [one.communicate(timeout=200)[0] for one in started]
    finally:
        metronome.stop()
        for one in started:
            one.kill()
    assert [one.returncode for one in started] == [3] * world, outputs
    return [re.match(r"([\d.]+)\n([\d.]+) (.*)", output).groups() for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("some", [(3, {0, 1}), *slowly((2, {1}), (2, {0}), (4, {0, 2}), (4, {1, 3}))])
def test_the_switch_on_some_ranks_only(some):
    world, switched = some
    ended = ranks(world, switched)
    last = max(float(arrival) for arrival, _, _ in ended)
    for rank, (_, end, error) in enumerate(ended):
        assert float(end) - last < within(1.0)
        if rank in switched:
            told = re.match(
                r"ringreduce: rank (\d) uses Gloo itself: RINGREDUCE_AS=gloo is set on rank (\d),", error
            )
            assert told, error
            assert int(told[1]) not in switched and int(told[2]) == rank
        else:
            assert "Connection closed by peer" in error


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forked", *slowly("spawned", "spawned_after_the_variable")])
def test_ranks_that_torch_starts(way):
    variable = "" if way.endswith("variable") else "gloo"
    command, given = [sys.executable, str(PROGRAM), way], environment(RINGREDUCE_AS=variable)
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=200)
    assert done.stdout.split() == ["torch_backend"] * 2, done.stderr


TOO_OLD = """
import torch, torch.distributed as dist
torch.__version__ = "2.5.1"
import ringreduce.frameworks.torch
ringreduce.frameworks.torch.register()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))).__module__)
"""


@pytest.mark.slow
def test_too_old_a_torch_keeps_gloo_and_is_told():
    given = environment(RINGREDUCE_AS="gloo", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    command = [sys.executable, "-c", TOO_OLD]
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=200)
    assert done.stdout == "torch.distributed.distributed_c10d\n", done.stderr
    assert done.stderr.count("needs torch 2.6 or later; this is torch 2.5.1") == 1


WITHOUT_DISTRIBUTED = """
import sys, types, warnings
warnings.simplefilter("error")
torch = types.ModuleType("torch")
torch.distributed = types.ModuleType("torch.distributed")
torch.distributed.is_available = lambda: False
sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})
import ringreduce.frameworks.torch
ringreduce.frameworks.torch.register()
"""


def test_torch_without_distributed_is_left_alone():
    """As where torch was built with USE_DISTRIBUTED=0, which has no groups for anybody to ask for."""
    command, given = [sys.executable, "-c", WITHOUT_DISTRIBUTED], environment(RINGREDUCE_AS="gloo")
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_another_value_is_told():
    done = subprocess.run(
        [sys.executable, "-c", "import torch.distributed as dist; print(dist.is_backend_available('ringreduce'))"],
        capture_output=True, text=True, env=environment(RINGREDUCE_AS="glue"), timeout=200,
    )  # fmt: skip
    assert "RINGREDUCE_AS must be gloo, not 'glue'" in done.stderr and done.stdout == "True\n"
