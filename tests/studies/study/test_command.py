"""The command line: what it prints, and one line for each mistake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pydantic")

import pandas as pd

from ringreduce.cli import main
from ringreduce.study import load
from ringreduce.study.folder import as_rows, save
from tests.processes import free_port
from tests.studies.study.test_plan import FUNCTION

PLAN = """
algorithms = ["ring", "one_shot", "two_level", "auto"]
sizes = ["1K", "4K"]
worlds = [2, 3]
transports = ["shm", "tcp"]
figure_s = 0.005
launches = {least = 1, most = 2}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def test_the_transport_that_came_of_the_one_asked_for_is_kept(folder):
    (folder / "plan.toml").write_text(PLAN.replace('"shm", "tcp"', '"shm+tcp"').replace("[2, 3]", "[2]"))
    assert main(["study", "plan.toml", "--folder", "mine"]) == 0
    assert load(folder / "mine").facts["transports"] == {"2 ranks, shm+tcp": "shm"}


def test_a_study_shows_winners_and_what_could_not_be_measured(folder, capsys):
    assert main(["study", "plan.toml", "--folder", "mine"]) == 0
    out = capsys.readouterr().out
    rows = load(folder / "mine").rows
    assert set(rows.algorithm) >= {"ring", "one_shot", "auto"}
    assert len(rows.groupby(["world", "transport", "nbytes"])) == 8
    assert (rows.groupby("launch").order.max() >= 5).all()
    assert (rows.iterations > 0).all()
    assert (rows.q1_us <= rows.time_us).all()
    for text in (
        "all_reduce, shm, float32",
        "all_reduce, tcp, float32",
        "2 ranks",
        "4 KiB",
        "Holm",
        "mine/rows.csv",
    ):
        assert text in out
    facts = load(folder / "mine").facts
    assert facts["transports"] == {f"{n} ranks, {one}": one for n in (2, 3) for one in ("shm", "tcp")}
    assert facts["clock"] == "all ranks read one monotonic clock"
    assert main(["study", "plan.toml", "--folder", "mine"]) == 0  # there is nothing left to do
    assert load(folder / "mine").rows.equals(rows)


@pytest.mark.slow
def test_two_studies_are_compared(folder, capsys):
    assert main(["study", "plan.toml", "--folder", "old"]) == 0
    study = load(folder / "old")
    study.rows.time_us = 10.0  # a stall while one launch was measured would hide what is compared here
    copies = [
        study.rows.assign(launch=study.rows.launch + 100 * n, time_us=study.rows.time_us * (1 + n / 1000))
        for n in range(6)
    ]
    study.rows = as_rows(pd.concat(copies).to_dict("records"))
    save(study)
    study.folder, study.version = folder / "new", "0.2"
    slow = (study.rows.algorithm == "ring") & (study.rows.nbytes == 4096) & (study.rows.transport == "shm")
    study.rows.loc[slow, "time_us"] *= 100
    study.rows = study.rows[study.rows.algorithm != "one_shot"]
    save(study)
    capsys.readouterr()
    assert main(["study", "compare", "old", "new"]) == 0
    out = capsys.readouterr().out
    assert "B: new (ringreduce 0.2, " in out
    assert "2 of " in out
    assert "all_reduce shm float32, 4 KiB on 3" in out
    assert "Only in A: 8, first all_reduce" in out
    assert out.count("slower") == 2
    assert main(["study", "compare", "old", "new", "--all"]) == 0
    assert capsys.readouterr().out.count("all_reduce tcp float32") > 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nothing.toml"], "nothing.toml: No such file or directory"),
        (["plan.toml", "again.toml"], "study takes a single plan; 'again.toml' is one argument too many"),
        (["compare", "one"], "study compare takes two folders"),
        (["compare", "one", "two"], "one is not a study: study.json is missing"),
        (["report"], "study report takes one folder"),
        (
            ["mpi.toml"],
            "transports: mpi needs ranks that mpirun has started: mpirun -n 2 ringreduce study ...",
        ),
        (
            ["other.toml", "--folder", "x"],
            "x/study.json was written in format 7; this version reads format 1",
        ),
        (["plan.toml", "--budget", "-1"], "--budget must be more than 0"),
    ],
)
def test_a_mistake_gets_one_line(folder, capsys, arguments, error):
    (folder / "mpi.toml").write_text('transports = ["mpi"]')
    (folder / "other.toml").write_text("")
    (folder / "x").mkdir()
    (folder / "x" / "study.json").write_text('{"format": 7}')
    assert main(["study", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"ringreduce: {error}")


def test_nothing_measured_is_no_success(folder, capsys):
    (folder / "plan.toml").write_text(
        'algorithms = ["two_level"]\nsizes = [8]\nwires = ["int8"]\ndtypes = ["int32"]'
    )
    assert main(["study", "plan.toml"]) == 1
    assert "Not measured: two_level (2 cells, first 8 B on 2 ranks): " in capsys.readouterr().out


@pytest.mark.slow
def test_ranks_of_a_launcher_add_a_launch_each_time(folder):
    (folder / "plan.toml").write_text(PLAN.replace("[2, 3]", "[2]"))

    def launch(*more):
        port = str(free_port())
        known = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        command = [sys.executable, "-m", "ringreduce", "study", "plan.toml", *more]
        ranks = [
            subprocess.Popen(
                command, env={**known, "RANK": str(rank), "MASTER_PORT": port}, cwd=folder,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        return [(*rank.communicate(timeout=300), rank.returncode) for rank in ranks]

    (out, _, code), (nothing, _, other) = launch()
    assert (code, other, nothing) == (0, 0, "")
    assert "The same command adds another launch." in out
    launch()
    study = load(folder / "plan-study")
    assert list(study.rows.groupby("launch").transport.first()) == ["shm", "tcp", "shm", "tcp"]
    assert study.facts["launcher"] == "torchrun"
    (folder / "plan.toml").write_text(PLAN)
    (_, err, code), _ = launch("--folder", "plan-study")
    assert code == 2
    assert "plan-study: its study has another plan (worlds)" in err
    (folder / "plan.toml").write_text(PLAN.replace("[2, 3]", "[3]"))
    (_, err, code), _ = launch("--folder", "three")
    assert (code, "worlds: the plan has 3, but the launcher has started 2 ranks" in err) == (2, True)


@pytest.mark.slow
def test_an_algorithm_of_ones_own_competes(folder, capsys):
    (folder / "mine.py").write_text(FUNCTION)
    (folder / "plan.toml").write_text(PLAN.replace('"two_level"', '"mine.py:all_to_all_at_once"'))
    assert main(["study", "plan.toml", "--folder", "mine"]) == 0
    rows = load(folder / "mine").rows
    assert set(rows.algorithm) == {"ring", "one_shot", "mine.py:all_to_all_at_once", "auto"}
    assert load(folder / "mine").refused == []
    assert main(["study", "--folder", "mine"]) == 0
    (folder / "mine.py").write_text(FUNCTION + "\n# another idea\n")
    capsys.readouterr()
    assert main(["study", "--folder", "mine"]) == 2
    assert capsys.readouterr().err == (
        f"ringreduce: mine: {folder / 'mine.py'} has changed since the study was started; use another folder\n"
    )
