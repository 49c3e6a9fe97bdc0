"""DeepSpeed's ZeRO trains alike on several ranks of ringreduce and in one process."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.frameworks.installed.programs import output, run

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("deepspeed is not installed", allow_module_level=True)

EXAMPLE, STEPS = "deepspeed_zero.py", 6
COMPILING = 900  # seconds, with other work on the machine
pytestmark = pytest.mark.timeout(COMPILING + 300)


def trained(ranks: int | None, *arguments: str, steps: int = STEPS, backend: str = "ringreduce") -> list:
    words = ("--backend", backend, "--json", "--steps", str(steps), *arguments)
    found = run(EXAMPLE, *words, ranks=ranks, limit=COMPILING)
    assert (found["backend"], found["world"], len(found["losses"])) == (backend, ranks or 1, steps)
    return found["losses"]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return trained(None, backend="gloo")


@pytest.mark.slow
@pytest.mark.parametrize("stage, ranks", [("1", 2), ("2", 2), ("3", 2), ("3", 4)])
def test_losses_are_those_of_one_process(alone, stage, ranks):
    assert trained(ranks, "--stage", stage) == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
def test_bfloat16(alone):
    assert trained(2, "--stage", "2", "--bfloat16") == pytest.approx(alone, rel=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["2", "3"])
def test_training_goes_on_from_a_checkpoint(alone, tmp_path, stage):
    before = trained(2, "--stage", stage, "--save", str(tmp_path), steps=STEPS // 2)
    after = trained(2, "--stage", stage, "--load", str(tmp_path), steps=STEPS // 2)
    assert before + after == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
def test_communication_logger_counts_the_calls_of_every_step():
    printed = output(EXAMPLE, "--json", "--steps", "4", "--stage", "3", "--comms-log", ranks=2)
    table, result = re.fullmatch(r"(?s).*?(Comm\. Op.*)\n(\{.*\})\s*", printed).groups()
    assert json.loads(result)["backend"] == "ringreduce"
    counts: dict[str, int] = {}
    for line in table.splitlines()[1:]:
        if found := re.match(r"(\w+)\s*$", line):
            operation = found[1]
        elif found := re.match(r"\s+\S+(?: B|)\s+(\d+) ", line.replace(" KB", "KB")):
            counts[operation] = counts.get(operation, 0) + int(found[1])
    assert counts["reduce_scatter_tensor"] == 4  # one bucket of gradients in each step
    assert counts["all_gather_into_tensor"] > 4 * 7  # the parameters of seven layers
