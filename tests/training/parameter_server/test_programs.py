"""The example and the trainer, as users start them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import on_ranks_of_a_command

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch._dynamo  # noqa: F401  # optimizers import it, which takes seconds: once, before ranks are forked

from ringreduce.train.__main__ import main
from ringreduce.train.checkpoint import existing
from ringreduce.train.config import Config, ConfigError
from tests.conftest import slowly
from tests.forked import forked, launched_ranks

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/parameter_server.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("parameter_server_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_example(text: str, workers: int, batches: int) -> None:
    found = re.findall(r"rank \d: (\d+) batches, loss (\S+) at first, (\S+) in the end", text)
    assert len(found) == workers
    assert sum(int(own) for own, _, _ in found) == batches
    assert all(float(last) < 0.8 * float(first) for _, first, last in found)


@pytest.mark.parametrize("servers", [1, *slowly(None)])
def test_the_example_learns(servers):
    chosen = ["--servers", str(servers)] if servers else ["--staleness", "1"]
    done = forked(example().main, ["parameter_server.py", "--batches", "300", *chosen], launched_ranks(3))
    assert [each.returncode for each in done] == [0, 0, 0], done
    check_example("".join(each.stdout for each in done), 3 - (servers or 0), 300)


@pytest.mark.slow
def test_the_example_under_a_launcher():
    done = on_ranks_of_a_command("-n", 2, sys.executable, EXAMPLE, "--batches", 300, timeout=150)
    assert done.returncode == 0, done.stderr
    check_example(done.stdout, 2, 300)


SMALL = (
    "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--text-bytes", "1048576", "--batch", "8",
    "--threads", "1",  # a forked rank could not use those of a parent in which other tests have started some
)  # fmt: skip


def _train(*flags: str, steps: int = 6) -> None:
    flags = (*SMALL, "--no-progress", "--log-every", "1", "--evaluate-every", "0", "--clip", "0", *flags)
    assert main(["--ranks", "2", "--steps", str(steps), *flags]) == 0


@pytest.mark.slow
def test_the_trainer_with_staleness_0_is_the_synchronous_one(tmp_path):
    def losses(*flags: str) -> list[float]:
        log = tmp_path / "log.jsonl"
        _train("--json-log", str(log), *flags)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        log.unlink()
        return [row["loss"] for row in rows if "loss" in row]

    synchronous = losses("--reproducible")
    assert losses("--reproducible", "--parameter-server") == synchronous
    assert len(losses("--reproducible", "--parameter-server", "--staleness", "2")) == len(synchronous)


@pytest.mark.slow
def test_the_trainer_resumes(tmp_path):
    folder = ("--checkpoints", str(tmp_path), "--checkpoint-every", "3")
    folder += ("--parameter-server", "--staleness", "-1")
    _train(*folder, steps=3)
    _train(*folder, "--resume", "auto", steps=6)
    assert existing(tmp_path)[-1].name.startswith("step-00000006-run-00002-")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"staleness": 1}, "staleness: it needs parameter_server"),
        ({"parameter_server": True, "staleness": -2}, "staleness must be >= -1"),
        ({"parameter_server": True, "compression": "int8"}, "cannot be combined with"),
        ({"parameter_server": True, "task": "digits"}, "sync_batch_norm"),
        ({"parameter_server": True, "sharded_optimizer": 1}, "sharded_optimizer"),
    ],
)
def test_settings_that_do_not_fit(settings, text):
    with pytest.raises(ConfigError, match=text):
        Config(**settings)


def test_one_rank_has_no_server(capfd):
    assert main([*SMALL, "--parameter-server"]) == 2
    assert "parameter_server: it needs 2 or more ranks" in capfd.readouterr().err
