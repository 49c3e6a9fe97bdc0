"""Studies: stopping, going on after an interruption, false winners of the whole procedure."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pydantic")

from ringreduce.model import Model
from ringreduce.model.model import CAUSES, Costs
from ringreduce.study import load, winners
from ringreduce.study import runner as running
from ringreduce.study.launch import Found
from ringreduce.study.plan import Competitor, Plan
from ringreduce.study.runner import CellGroup, Runner, locked, opened

TWO = [Competitor(name="ring"), Competitor(name="ring", label="ring again")]


class Machine:
    """Measures nothing: every launch has a mode and a level of its own, and figures have noise with heavy tails."""

    def __init__(self, seed, noise=0.03, factor=None, refuses=(), steady=False):
        self.random, self.noise, self.factor = np.random.default_rng(seed), noise, factor or {}
        self.refuses, self.asked, self.steady = refuses, [], steady

    def __call__(self, group, blocks, seconds):
        self.asked.append((group, blocks, seconds))
        level = np.exp(self.random.normal(0, 0.1)) * (1.5 if self.random.random() < 0.3 else 1)
        level = 1.0 if self.steady else level
        found = Found(group.transport, clock="none")
        for number, (cell, entries) in enumerate(blocks):
            for order, entry in enumerate(entries):
                named = {**cell._asdict(), "algorithm": str(entry), "block": number, "order": order}
                if str(entry) in self.refuses:
                    found.refused.append({**named, "reason": "it takes other worlds"})
                    continue
                us = level * cell.nbytes * self.factor.get(str(entry), 1.0)
                us *= np.exp(self.noise * self.random.standard_t(3))
                times = dict.fromkeys(("time_us", "q1_us", "q3_us", "min_us", "max_us"), us)
                counts = {"iterations": 20, "warmup": 0, "late": 0, "outliers_us": ""}
                found.rows.append({**named, **times, **counts})
        return found


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch):
    monkeypatch.setattr(running._engine, "probe_exchange", lambda: 60.0)


def ended(folder, plan, machine, budget=1e9):
    study, plan = opened(folder, plan)
    runner = Runner(study, plan, machine)
    while (following := runner.next(budget)) is not None:
        runner.launch(*following)
    return runner


def test_a_cell_stops_when_its_intervals_are_narrow(tmp_path):
    plan = Plan(algorithms=TWO, sizes=[4, 64], worlds=[2, 4], launches={"least": 4, "most": 12})

    def launches(machine):
        rows = ended(tmp_path / str(machine.noise), plan, machine).study.rows
        return list(rows.groupby(["world", "nbytes"]).launch.nunique())

    assert launches(Machine(1, 0.3)) == [12] * 4
    assert launches(Machine(1, 1e-4, steady=True)) == [4] * 4


def test_the_budget_ends_a_study_and_more_of_it_goes_on(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(running.time, "monotonic", lambda: float(next(clock)))  # five seconds a launch
    plan = Plan(algorithms=TWO, sizes=[64], worlds=[2, 4], budget_s=32)
    assert ended(tmp_path, plan, Machine(1), 32).study.rows.launch.nunique() == 6
    study = load(tmp_path)
    assert study.spent_s == 30
    assert list(study.rows.groupby("world").launch.nunique()) == [3, 3]
    runner = ended(tmp_path, None, Machine(2), 51)
    assert runner.plan.seed == study.plan["seed"]
    rows = load(tmp_path).rows
    assert rows[: len(study.rows)].equals(study.rows)
    assert sorted(rows.launch.unique()) == list(range(10))


def test_what_is_refused_is_asked_once_and_kept(tmp_path):
    plan = Plan(algorithms=[*TWO, Competitor(name="swing")], sizes=[64], launches={"least": 2, "most": 3})
    machine = Machine(1, refuses=["swing"])
    study = ended(tmp_path, plan, machine).study
    assert [len(blocks[0].entries) for _, blocks, _ in machine.asked] == [3, 3, 2, 2, 2, 2]
    assert {one["algorithm"] for one in load(tmp_path).refused} == {"swing"}
    assert set(study.rows.algorithm) == {"ring", "ring again"}
    machine = Machine(1, refuses=["swing", "ring", "ring again"])
    assert ended(tmp_path / "none", plan, machine).study.rows.empty


def test_a_folder_is_for_one_plan_one_machine_and_one_version(tmp_path, monkeypatch):
    plan = Plan(algorithms=TWO, sizes=[64], worlds=[2], launches={"least": 1, "most": 1})
    ended(tmp_path, plan, Machine(1))
    with pytest.raises(ValueError, match=r"its study has another plan \(sizes\); use another folder"):
        opened(tmp_path, plan.model_copy(update={"sizes": [8]}))
    opened(tmp_path, plan.model_copy(update={"budget_s": 9.0}))
    with monkeypatch.context() as patch:
        patch.setattr(running.ringreduce, "__version__", "99")
        with pytest.raises(ValueError, match=r"started with ringreduce .*, and this is 99"):
            opened(tmp_path, plan)
    monkeypatch.setattr(running, "machine_facts", lambda ranks: {"cpu": "another", "host": "x"})
    with pytest.raises(ValueError, match=r"started where cpu is .*; here it is another"):
        opened(tmp_path, None)


def test_two_studies_do_not_write_into_one_folder(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(ValueError, match="another process is running a study there"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def predicted(folder, model, **more):
    plan = Plan(
        algorithms=[Competitor(name="one_shot"), *TWO], sizes=["1M"], launches={"least": 1, "most": 1},
        model=model, **more,
    )  # fmt: skip
    return ended(folder, plan, Machine(1)).study.rows.set_index("algorithm").predicted_us


def test_a_network_predicts_beside_each_figure(tmp_path):
    network = tmp_path / "flat.toml"
    network.write_text('[network]\nkind = "flat"\nhosts = 2\nrate = "1 Gbit/s"\nlatency_us = 10\n')
    us = predicted(tmp_path / "folder", network, worlds=[2])
    assert us["ring"] == us["ring again"] == pytest.approx(8400, rel=0.1)
    assert us["one_shot"] > 0
    grid = tmp_path / "grid.toml"
    grid.write_text('[network]\nkind = "torus"\ndims = [2, 2]\nrate = "1 Gbit/s"\nlatency_us = 10\n')
    assert predicted(tmp_path / "grid", grid, worlds=[4]).notna().all()
    with pytest.raises(ValueError, match=r"grid.toml: the network has a fixed number of ranks"):
        predicted(tmp_path / "three", grid, worlds=[3, 4])
    with pytest.raises(ValueError, match=r"nothing.toml: No such file"):
        predicted(tmp_path / "other", tmp_path / "nothing.toml")


def test_a_model_predicts_what_it_was_fitted_to(tmp_path):
    model = tmp_path / "here.json"
    costs = Costs(sizes=[1 << 20], seconds={cause: [1e-9] for cause in CAUSES}, errors=(0.0, 0.0))
    Model(made={}, cores=2, inside=costs).save(model)
    us = predicted(tmp_path / "folder", model, worlds=[2], transports=["shm", "tcp"], wires=["", "int8"])
    assert us["ring"].notna().sum() == 1  # by shared memory, in the buffer's own format
    assert us["ring"].max() == pytest.approx(us["ring again"].max())
    assert us["ring"].max() > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)  # half a minute of one core
def test_studies_that_stop_by_themselves_declare_no_false_winner(tmp_path):
    """An algorithm under two names, beside a slower and a slightly faster one: 20 studies that stop by themselves."""
    plan = Plan(
        algorithms=[*TWO, Competitor(name="swing"), Competitor(name="tree")], sizes=[8, 65536], worlds=[2, 4],
        interval=0.08, launches={"least": 4, "most": 12},
    )  # fmt: skip
    false = found = 0
    for seed in range(20):
        machine = Machine(seed, 0.02, {"swing": 1.5, "tree": 0.93})
        table = winners(ended(tmp_path / str(seed), plan, machine).study.rows, plan.difference)
        false += any(len({"ring", "ring again"} & set(tie)) == 1 for tie in table.winners)
        found += sum("swing" not in tie for tie in table.winners)
    assert false <= 1
    assert found > 0.9 * 20 * 4


PLAN = """
algorithms = ["ring", "one_shot"]
sizes = ["1K", "4K"]
figure_s = 0.02
launches = {least = 20, most = 20}
"""


def command(folder, *more):
    (folder / "plan.toml").write_text(PLAN)
    text = [sys.executable, "-m", "ringreduce", "study", *more]
    return subprocess.Popen(text, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def after_rows(folder, process):
    """Waits until a launch has been kept, and another one is under way."""
    rows = folder / "plan-study" / "rows.csv"
    while not rows.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.05)


def whole(rows):
    return (rows.groupby("launch").size() == 4).all()


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_with_whole_launches(tmp_path):
    process = command(tmp_path, "plan.toml")
    after_rows(tmp_path, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = load(tmp_path / "plan-study")
    assert 1 <= kept.rows.launch.nunique() < 40
    assert whole(kept.rows)
    process = command(tmp_path, "--folder", "plan-study", "--budget", str(kept.spent_s + 3))
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    rows = load(tmp_path / "plan-study").rows
    assert rows[: len(kept.rows)].equals(kept.rows)
    assert rows.launch.nunique() > kept.rows.launch.nunique()
    assert whole(rows)
    assert "all_reduce, shm, float32" in out
    assert "1 KiB" in out


def test_an_interrupted_study_says_how_to_go_on(tmp_path):
    process = command(tmp_path, "plan.toml")
    after_rows(tmp_path, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    line = err.strip().splitlines()[-1]  # where it hits a fork, Python says so before
    assert line.startswith("ringreduce: interrupted after ")
    assert line.endswith("Continue with: ringreduce study --folder plan-study")
    assert whole(load(tmp_path / "plan-study").rows)


def test_a_group_is_a_world_and_a_transport():
    plan = Plan(worlds=[2, 3], transports=["shm", "tcp"])
    study, plan = opened(running.Path("nowhere"), plan)
    assert CellGroup(3, "tcp") in Runner(study, plan, Machine(0)).groups()
