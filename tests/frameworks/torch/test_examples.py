"""The examples train alike on several ranks of ringreduce and on one rank by itself, started as users start them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BACKEND = os.environ.get("RINGREDUCE_TEST_BACKEND", "ringreduce")  # another one: to try the tests
STEPS = "8"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}

# Example and arguments, ranks, and how far losses may lie from those of a single process, relatively: gradients
# are added in another order, and with bfloat16 and float16 rounded on their way.
FLOAT32 = 1e-4
RUNS = {
    "ddp": (["ddp.py"], 2, FLOAT32),
    "ddp float16 hook": (["ddp.py", "--compress"], 3, 2e-3),
    "fsdp2": (["fsdp2.py"], 3, FLOAT32),
    "fsdp2 bfloat16": (["fsdp2.py", "--bfloat16"], 2, 1e-2),
    "tensor parallel": (["tensor_parallel.py"], 2, FLOAT32),
    "tensor and data parallel": (["tensor_parallel.py", "--data-parallel", "2"], 4, FLOAT32),
    "three dimensions": (["three_dimensions.py"], 8, FLOAT32),
    "zero": (["zero.py"], 2, FLOAT32),
    "lightning": (["lightning_ddp.py"], 2, FLOAT32),
    "lightning fsdp2": (["lightning_ddp.py", "--fsdp2"], 3, FLOAT32),
}
NEEDS = {"lightning": "lightning", "lightning fsdp2": "lightning"}
ALONE = (
    *(name for name in RUNS if name not in ("ddp float16 hook", "tensor and data parallel")),
    "checkpoint",
)

# Runs each command line of sys.argv[1] in a process of its own, without importing torch anew for each.
FORK_EACH = """
import json, os, runpy, sys
import torch, torch.distributed.fsdp, torch.distributed.tensor.parallel
sys.path.insert(0, sys.argv[2])
for line in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        sys.argv = line
        runpy.run_path(line[0], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, line
"""


def there(name: str) -> bool:
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def printed(command: list[str]) -> list[dict]:
    """The JSON lines that a program prints, which must end well."""
    run = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=ENVIRONMENT, timeout=500
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"')]


def command_line(arguments: list[str], backend: str, *more: str) -> list[str]:
    example, *rest = arguments
    return [str(EXAMPLES / example), *rest, "--backend", backend, "--json", *more]


def on_ranks(count: int, arguments: list[str], *more: str) -> list[float]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    (found,) = printed([*launcher, *command_line(arguments, BACKEND, *more)])
    assert (found["backend"], found["world"]) == (BACKEND, count)
    return found["losses"]


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    """The losses of one process on the same batches, by example; ours has no part in them."""
    names = [name for name in ALONE if there(name)]
    lines = [
        command_line([f"{name}.py"] if name == "checkpoint" else RUNS[name][0], "gloo", "--steps", STEPS)
        for name in names
    ]
    found = printed(["-c", FORK_EACH, json.dumps(lines), str(EXAMPLES)])
    assert [one["world"] for one in found] == [1] * len(names)
    return {name: one["losses"] for name, one in zip(names, found, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_one_process(name, alone):
    if not there(name):
        pytest.skip(f"{NEEDS[name]} is not installed")
    arguments, ranks, tolerance = RUNS[name]
    like = {"ddp float16 hook": "ddp", "tensor and data parallel": "tensor parallel"}.get(name, name)
    losses = on_ranks(ranks, arguments, "--steps", STEPS)
    assert len(losses) == int(STEPS)
    assert losses == pytest.approx(alone[like], rel=tolerance)


@pytest.mark.slow
def test_checkpoint_goes_on_with_another_number_of_ranks(alone, tmp_path):
    half = str(int(STEPS) // 2)
    before = on_ranks(3, ["checkpoint.py"], "--steps", half, "--save", str(tmp_path))
    after = on_ranks(2, ["checkpoint.py"], "--steps", half, "--load", str(tmp_path))
    assert before + after == pytest.approx(alone["checkpoint"], rel=FLOAT32)


def test_every_example_is_run():
    run = {arguments[0] for arguments, _, _ in RUNS.values()}
    # Above, and in other files.
    elsewhere = {"checkpoint.py", "elastic.py", "elastic_training.py", "data_parallel_from_scratch.py"}
    elsewhere |= {"horovod_torch.py", "horovod_keras.py", "keras_data_parallel.py", "jax_data_parallel.py"}
    elsewhere |= {
        "bucketed_sequences.py",
        "parameter_server.py",
        "llama_inference.py",
        "vllm_llama.py",
        "deepspeed_zero.py",
        "lightgbm_data_parallel.py",
        "ray_train.py",
        "ray_collectives.py",
        "torchft_ddp.py",
    }
    assert {path.name for path in EXAMPLES.glob("*.py")} == run | elsewhere | {"common.py"}
