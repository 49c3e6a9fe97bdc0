"""The program: ``python -m ringreduce.train`` as users start it, and the files that it leaves."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

if None in map(importlib.util.find_spec, ("torch", "sklearn", "matplotlib", "tqdm")):
    pytest.skip("what 'ringreduce[train]' brings is not installed", allow_module_level=True)

import sklearn.datasets  # noqa: F401  # here, and not anew in every forked rank
import torch

from ringreduce.plotting import pyplot
from ringreduce.train.__main__ import main
from ringreduce.train.checkpoint import existing
from ringreduce.train.config import Config
from ringreduce.train.efficiency import TOGETHER, Efficiency, measure, table
from ringreduce.train.training_run import on_ranks
from tests.conftest import slowly
from tests.forked import forked, launched_ranks

pyplot()  # imports matplotlib, like the others
if importlib.util.find_spec("tensorboard"):
    import torch.utils.tensorboard

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
GPT = (
    "--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--text-bytes", str(1 << 20), "--batch", "8",
    "--steps", "6", "--evaluate-every", "2", "--evaluate-samples", "16", "--log-every", "1", "--timeout", "30",
    "--threads", "1",  # a forked rank could not use those of a parent in which other tests have started some
)  # fmt: skip


def rows_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_what_a_run_leaves(tmp_path, capfd):
    log, trace, picture = tmp_path / "run.jsonl", tmp_path / "trace.json", tmp_path / "run.png"
    files = (
        "--json-log",
        str(log),
        "--trace",
        str(trace),
        "--plot",
        str(picture),
        "--bucket-mb",
        "0.01",
        "--first-bucket-mb",
        "0.01",
    )
    assert main([*GPT, *files, "--ranks", "2"]) == 0

    training = [row for row in rows_of(log) if "loss" in row]
    assert [row["step"] for row in training] == [1, 2, 3, 4, 5, 6]
    for row in training:
        assert row["compute_s"] + row["exposed_s"] == pytest.approx(row["step_s"])
        assert row["communication_s"] > 0
        assert 0 <= row["waiting_for_ranks_s"] <= row["exposed_s"]
        assert row["tokens_per_s"] == pytest.approx(8 * 16 / row["step_s"])
    held_out = [row for row in rows_of(log) if "validation_loss" in row]
    assert [row["step"] for row in held_out] == [2, 4, 6]
    assert picture.read_bytes().startswith(b"\x89PNG")

    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    for rank in (0, 1):
        names = [span["name"] for span in spans if span["pid"] == rank]
        assert [names.count(name) for name in ("step", "forward", "backward", "optimizer")] == [6, 6, 6, 6]
        assert names.count("evaluation") == 3
        assert names.count("bucket 0") == 6
        assert "bucket 1" in names
        assert "wait" in names

    told = capfd.readouterr().out
    assert f"Plot: {picture}" in told
    assert f"{training[-1]['loss']:.4f}" in told


def steps_in(folder: Path) -> list[int]:
    found = existing(folder)
    assert sorted(found) == sorted(folder.iterdir())
    return [int(path.name.split("-")[1]) for path in found]


def test_resume_auto_goes_on_and_adds_to_the_log(tmp_path, capfd):
    log, folder = tmp_path / "run.jsonl", tmp_path / "checkpoints"
    files = (
        "--json-log",
        str(log),
        "--checkpoints",
        str(folder),
        "--checkpoint-every",
        "2",
        "--resume",
        "auto",
    )
    assert main([*GPT, *files, "--schedule", "constant", "--steps", "3"]) == 0  # there is none yet
    assert steps_in(folder) == [2, 3]
    assert main([*GPT, *files, "--schedule", "constant", "--ranks", "2"]) == 0
    assert [row["step"] for row in rows_of(log) if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert steps_in(folder) == [4, 6]
    assert main([*GPT, *files, "--ranks", "2"]) == 0
    assert "there were no steps left to do" in capfd.readouterr().out

    assert main([*GPT, *files[:-1], str(tmp_path / "none.pt"), "--ranks", "2"]) == 2
    assert "none.pt: No such file or directory" in capfd.readouterr().err
    assert main([*GPT, *files, "--ranks", "2", "--width", "32"]) == 2
    assert "width is 16 in the checkpoint, but 32 in the settings" in capfd.readouterr().err


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MPIEXEC = (str(Path(sys.executable).with_name("mpiexec")), "-n", "2", sys.executable)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, MPIEXEC], ids=["torchrun", "mpiexec"])
def test_launchers(launcher, tmp_path):
    if not Path(launcher[0]).exists():
        pytest.skip(f"{Path(launcher[0]).name} is not installed beside Python")
    log = tmp_path / "run.jsonl"
    run = subprocess.run(
        [*launcher, "-m", "ringreduce.train", *GPT, "--json-log", str(log)],
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "ranks                       2" in run.stdout
    assert [row["step"] for row in rows_of(log) if "loss" in row] == [1, 2, 3, 4, 5, 6]


def test_a_launcher_knows_the_number_of_ranks(monkeypatch, capfd):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert main([*GPT, "--ranks", "3"]) == 2
    assert "ranks: torchrun has started 2, not 3" in capfd.readouterr().err


def test_digits_are_learned(tmp_path, capfd):
    board = tmp_path / "board"
    log = tmp_path / "run.jsonl"
    more = ["--tensorboard", str(board)] if importlib.util.find_spec("tensorboard") else []
    settings = (
        "--task",
        "digits",
        "--threads",
        "1",
        "--batch",
        "64",
        "--steps",
        "100",
        "--learning-rate",
        "0.003",
    )
    assert main([*settings, "--ranks", "2", "--json-log", str(log), *more]) == 0
    accuracies = [row["validation_accuracy"] for row in rows_of(log) if "validation_accuracy" in row]
    assert accuracies[-1] >= 0.95
    if more:
        assert any(path.stat().st_size > 1000 for path in board.iterdir())


def test_efficiency():
    config = Config(
        layers=1, heads=2, width=16, context=16, text_bytes=1 << 20, batch=8, ranks=2, threads=1, timeout=30
    )
    found = on_ranks(measure, config, 3, 2)
    assert isinstance(found, Efficiency)
    assert found.batch_per_rank == 4
    assert all(len(rates) == 3 and min(rates) > 0 for rates in found.rates.values())
    assert len(found.rows) == 3 and all(0 <= row["exposed_share"] <= 1 for row in found.rows)
    pairs = zip(found.rates[TOGETHER], found.rates["alone"], strict=True)
    assert found.ratios(TOGETHER) == [together / (2 * alone) for together, alone in pairs]
    assert "scaling efficiency" in table(found)


def test_efficiency_of_one_rank_is_refused(capfd):
    assert main([*GPT, "--efficiency"]) == 2
    assert "ranks: measuring the efficiency needs 2 or more" in capfd.readouterr().err


def run_train(*arguments: str, ranks: int = 1, cores: set[int] | None = None) -> None:
    """In a process of its own, which may use these cores and has no threads yet."""
    subprocess.run(
        [sys.executable, "-m", "ringreduce.train", *arguments, "--ranks", str(ranks)],
        env=ENVIRONMENT, check=True, timeout=100, preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)),
    )  # fmt: skip


def test_resume_auto_goes_on_from_the_latest_run(tmp_path):
    log, folder = tmp_path / "run.jsonl", tmp_path / "checkpoints"
    files = ("--json-log", str(log), "--checkpoints", str(folder), "--checkpoint-every", "1", "--keep", "1")
    assert main([*GPT, *files, "--schedule", "constant", "--steps", "3"]) == 0
    assert main([*GPT, *files, "--schedule", "constant", "--steps", "1"]) == 0
    assert steps_in(folder) == [1]
    assert main([*GPT, *files, "--schedule", "constant", "--steps", "2", "--resume", "auto"]) == 0
    assert [row["step"] for row in rows_of(log) if "loss" in row][-2:] == [1, 2]
    assert steps_in(folder) == [2]


# Large enough for the bits of torch's sums to depend on the number of threads.
WIDE = (
    "--layers", "1", "--heads", "2", "--width", "64", "--context", "64", "--text-bytes", str(1 << 20), "--batch", "8",
    "--steps", "4", "--schedule", "constant", "--checkpoint-every", "2", "--timeout", "30",
)  # fmt: skip


def weights(folder: Path) -> dict[str, Any]:
    return torch.load(existing(folder)[-1], weights_only=True)["model"]


def same_weights(one: Path, other: Path) -> bool:
    return all(value.equal(weights(other)[name]) for name, value in weights(one).items())


two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="ranks have one thread each on a single core"
)


@pytest.mark.slow
@two_cores
def test_logical_shards_fix_the_bits_with_the_default_threads(tmp_path):
    for ranks in (1, 2):
        folder = str(tmp_path / str(ranks))
        run_train(*WIDE, "--logical-shards", "2", "--checkpoints", folder, ranks=ranks)
    assert same_weights(tmp_path / "1", tmp_path / "2")


@pytest.mark.slow
@two_cores
def test_going_on_with_fewer_cores_gives_the_same_bits(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    whole, other = tmp_path / "whole", tmp_path / "other"
    run_train(*WIDE, "--checkpoints", str(whole), cores=set(cores[:2]))
    run_train(*WIDE, "--checkpoints", str(other), "--resume", str(existing(whole)[0]), cores={cores[0]})
    assert same_weights(whole, other)
    run_train(*WIDE, "--checkpoints", str(other), cores={cores[0]})
    assert not same_weights(whole, other)  # else this test would show nothing


# --- what fails is told in one line --------------------------------------------------------------------------


def refusal(arguments: Sequence[str], capfd) -> str:
    """The only line of standard error."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "place", "reason"),
    [
        ("checkpoints", "file/folder", "Not a directory"),
        ("tensorboard", "file/folder", "Not a directory"),
        ("json_log", "file/log.jsonl", "Not a directory"),
        ("plot", "file/picture.png", "Not a directory"),
        ("trace", "file/trace.json", "Not a directory"),
        ("json_log", "folder", "Is a directory"),
        ("plot", "picture.xyz", "must end in one of"),
        ("plot", "picture", "must end in one of"),
        ("resume", "none.pt", "No such file or directory"),
        ("resume", "folder", "Is a directory"),
        ("resume", "file", "is damaged or not a checkpoint"),
    ],
)
def test_places_that_cannot_be_used_are_told_before_data_is_loaded(
    name, place, reason, tmp_path, capfd, monkeypatch
):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("ringreduce.train.trainer.load_data", lambda _: pytest.fail("data is loaded"))
    flags = ["--" + name.replace("_", "-"), str(tmp_path / place), "--ranks", "2"]
    line = refusal([*GPT, *flags], capfd)
    assert line.startswith(f"ringreduce.train: {name}: ")
    assert str(tmp_path / place) in line
    assert reason in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_missing_plotting_library_is_told_before_data_is_loaded(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refusal([*GPT, "--plot", str(tmp_path / "a.png")], capfd)
    assert line.startswith("ringreduce.train: plot: plotting needs matplotlib")


def test_a_damaged_checkpoint_is_told_in_one_line(tmp_path, capfd):
    files = ("--checkpoints", str(tmp_path), "--checkpoint-every", "2", "--schedule", "constant")
    assert main([*GPT, *files, "--steps", "4"]) == 0
    whole, damaged = sorted(tmp_path.iterdir())
    content = bytearray(damaged.read_bytes())
    place = len(content) // 2
    content[place : place + 64] = bytes(byte ^ 0xFF for byte in content[place : place + 64])
    damaged.write_bytes(content)
    capfd.readouterr()

    expected = (
        f"ringreduce.train: resume: {damaged} is damaged or not a checkpoint; resume from {whole} instead"
    )
    assert refusal([*GPT, *files, "--resume", str(damaged), "--ranks", "2"], capfd) == expected
    done = forked(
        lambda: main([*GPT, *files, "--resume", str(damaged)]), ["ringreduce.train"], launched_ranks(2)
    )
    assert [each.returncode for each in done] == [2, 2]
    assert "".join(each.stderr for each in done).splitlines() == [expected]

    assert main([*GPT, *files, "--resume", "auto", "--ranks", "2"]) == 0
    skipped = [line for line in capfd.readouterr().out.splitlines() if "damaged" in line]
    assert skipped == [f"resume: skipping damaged {damaged}; resuming from {whole}"]


NEW_NAMESPACES = 0x10000000 | 0x00020000  # CLONE_NEWUSER | CLONE_NEWNS


def on_a_small_disk(place: Path, fill: bool, arguments: Sequence[str]) -> int:
    """Trains in a process that sees a small file system at a place, and then prints what is in it."""
    user, group = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(NEW_NAMESPACES) == 0
    for name, text in {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}.items():
        Path("/proc/self", name).write_text(text)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], check=True)
    if fill:
        with contextlib.suppress(OSError):
            (place / "full").write_bytes(bytes(1 << 20))
    status = main(arguments)
    print(*(path.name for path in place.iterdir()), sep="\n")
    return status


@pytest.mark.parametrize("setting", ["checkpoints", "plot", *slowly("json-log", "trace")])
def test_a_full_disk_is_told_in_one_line(tmp_path, setting):
    mounted = tmp_path / "disk"
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run(
        [*unshare, "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    place = {"checkpoints": mounted, "plot": mounted / "plot.png"}.get(setting, mounted / "log.json")
    how = ["--checkpoint-every", "1", "--keep", "9"] if setting == "checkpoints" else []
    arguments = [*GPT, "--ranks", "2", *how, f"--{setting}", str(place)]
    (run,) = forked(
        lambda: on_a_small_disk(mounted, setting != "checkpoints", arguments), ["ringreduce.train"]
    )
    assert run.returncode == 2, run.stderr
    (line,) = run.stderr.splitlines()
    name = setting.replace("-", "_")
    assert line.startswith(f"ringreduce.train: {name}: {place}") and line.endswith(": the disk is full")
    if setting != "checkpoints":
        return
    left = [line for line in run.stdout.splitlines() if not line.startswith("step ")]
    assert left and all(name.endswith(".pt") for name in left)
