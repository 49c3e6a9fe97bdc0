"""The example and the trainer, started as users start them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ringreduce.train.config import Config, ConfigError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(200)


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("servers", ["1", None])
def test_the_example_learns(servers):
    chosen = ["--servers", servers] if servers else ["--staleness", "1"]
    text = _run("-m", "ringreduce", "run", "-n", "3", sys.executable, "examples/parameter_server.py", *chosen)
    found = re.findall(r"rank \d: (\d+) batches, loss (.*) at first, (.*) in the end", text)
    assert len(found) == (2 if servers else 3)
    assert sum(int(batches) for batches, _, _ in found) == 600
    assert all(float(last) < 0.8 * float(first) for _, first, last in found)


SMALL = (
    "--layers",
    "1",
    "--heads",
    "2",
    "--width",
    "16",
    "--context",
    "16",
    "--text-bytes",
    "1048576",
    "--batch",
    "8",
)


def _train(*flags: str, steps: int = 6) -> None:
    flags = (*SMALL, "--no-progress", "--log-every", "1", "--evaluate-every", "0", "--clip", "0", *flags)
    _run("-m", "ringreduce.train", "--ranks", "2", "--steps", str(steps), *flags)


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


def test_the_trainer_resumes(tmp_path):
    folder = (
        "--checkpoints",
        str(tmp_path),
        "--checkpoint-every",
        "3",
        "--parameter-server",
        "--staleness",
        "-1",
    )
    _train(*folder, steps=3)
    _train(*folder, "--resume", "auto", steps=6)
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "step-00000006.pt"


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


def test_one_rank_has_no_server():
    done = subprocess.run(
        [sys.executable, "-m", "ringreduce.train", *SMALL, "--parameter-server"],
        cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 2
    assert "parameter_server: it needs 2 or more ranks" in done.stderr
