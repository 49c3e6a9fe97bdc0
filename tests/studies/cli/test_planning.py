"""``ringreduce plan``."""

import json

import pytest

pytest.importorskip("pydantic")

from ringreduce.cli import main

JOB = """
[transformer]
layers = 4
width = 512
heads = 8
sequence = 256
vocabulary = 1000
batch = 2
flops = 1e12
memory_rate = "100 GB/s"
"""
CLUSTER = """
[network]
kind = "fat_tree"
hosts = 4
ranks_per_host = 2
hosts_per_leaf = 2
rate = "10 Gbit/s"
[costs.between]
send_us = 1
[device]
memory = "16 GB"
price_per_hour = 2
"""
RECORDED = {"samples": 4, "layers": [{"name": "a", "forward_s": 1, "backward_s": 2,
                                      "parameters": [{"name": "w", "numel": 1000}]}]}  # fmt: skip


def plan(folder, *options, job=JOB, cluster=CLUSTER):
    (folder / "cluster.toml").write_text(cluster)
    name = "job.toml" if isinstance(job, str) else "job.json"
    (folder / name).write_text(job if isinstance(job, str) else json.dumps(job))
    return main(["plan", str(folder / name), str(folder / "cluster.toml"), *options])


def test_a_table_compares_strategies_and_numbers_of_ranks(tmp_path, capsys):
    assert plan(tmp_path, "-n", "1,2,8") == 0
    title, heading, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("job: 13,253,632 parameters") and "tokens/s" in heading
    assert [row.split()[1] for row in rows[:15]] == ["1"] * 5 + ["2"] * 5 + ["8"] * 5
    assert "twice the bandwidth: +" in rows[-1]


def test_a_week_with_failures_is_summed_up(tmp_path, capsys):
    failures = "[failures]\nmtbf_hours = 20\ncheckpoint_s = 10\nspares = 1000\n"
    assert plan(tmp_path, "-s", "ddp", cluster=CLUSTER + failures) == 0
    assert " % steps made again" in capsys.readouterr().out.splitlines()[-1]


def test_json_has_the_same_figures(tmp_path, capsys):
    assert plan(tmp_path, "-s", "zero2,data_parallel:bucket_mb=5", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["strategy"] for one in found] == ["zero2", "data_parallel:bucket_mb=5"]
    assert all(
        one["world"] == 8 and sum(one["causes"].values()) == pytest.approx(one["seconds"]) for one in found
    )


def test_a_report_and_a_trace_are_written(tmp_path, capsys):
    options = ["--search", "--html", str(tmp_path / "plan.html"), "--trace", str(tmp_path / "step.json")]
    assert plan(tmp_path, "-s", "data_parallel,fsdp2", "-n", "2,4", *options) == 0
    found = capsys.readouterr()
    assert "searched on 4 ranks: all " in found.out.splitlines()[-1]
    assert found.err.splitlines() == [f"Written: {path}" for path in options[2::2]]
    assert "plotly.js" in (tmp_path / "plan.html").read_text()
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]


def test_a_recorded_job_may_be_json(tmp_path, capsys):
    assert plan(tmp_path, "-s", "ddp", job=RECORDED) == 0
    assert "samples/s" in capsys.readouterr().out


PROGRAM = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
"""


def test_a_program_is_recorded(tmp_path, capsys, only_the_model):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["plan", "--samples", "4", "record", str(tmp_path / "train.py"), "5"]) == 0
    assert plan(tmp_path, "-s", "ddp", job=json.loads((tmp_path / "train.json").read_text())) == 0
    assert "train: 577 parameters, 4 samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "4", "record", "train.py", "3"], "train.json: the recording has 2 whole steps"),
        (["--samples", "4", "record", "train.py", "0"], "train.py: no optimizer made a step"),
        (["--samples", "4", "record", "none.py"], "none.py: there is no such program"),
        (["record", "train.py"], "plan record needs a program, and --samples"),
        (["job.toml"], "plan needs a job and a cluster, or: record PROGRAM, not 'job.toml'"),
    ],
)
def test_a_recording_that_fails_gets_one_line(tmp_path, capsys, monkeypatch, words, message):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def without(key):
    return {name: value for name, value in RECORDED.items() if name != key}


def recorded(**layer):
    return {**RECORDED, "layers": [{**RECORDED["layers"][0], **layer}]}


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ([], {"job": recorded(backward_s=0)}, "job.json: layers: no layer has a backward pass, backward_s is 0"),
        ([], {"job": recorded(parameters=[])}, "job.json: layers: no layer has parameters"),
        ([], {"job": without("samples")}, "job.json: samples: Field required"),
        ([], {"job": recorded(seconds=3)}, "job.json: layers.0.seconds: there is no such key"),
        ([], {"job": JOB.replace("heads = 8", "heads = 7")}, "transformer: width, 512, must be a multiple of heads, 7"),
        ([], {"cluster": CLUSTER.replace('"16 GB"', "16")}, "cluster.toml: device.memory: 16 lacks a unit"),
        ([], {"cluster": CLUSTER.replace("10 Gbit/s", "10 Gbit")}, "cluster.toml: network.fat_tree.rate: '10 Gbit' is"),
        ([], {"cluster": CLUSTER.replace('"16 GB"', '"1 MB"')}, "device.memory: no strategy fits; fsdp2 needs least"),
        ([], {"cluster": 'model = "none.json"\nranks_per_host = 2'}, "none.json: No such file"),
        ([], {"cluster": CLUSTER + "[failures]\nmtbf_hours = 0"}, "cluster.toml: failures.mtbf_hours must be > 0"),
        (["-s", "zero4"], {}, "--strategy: there is no strategy 'zero4'"),
        (["--search"], {"cluster": CLUSTER.replace('"16 GB"', '"1 MB"')}, "device.memory: no setting fits"),
        ([], {"cluster": CLUSTER.replace('"10 Gbit/s"', "10")}, "cluster.toml: network.rate: 10 lacks a unit"),
        ([], {"job": JOB.replace('"100 GB/s"', "1e11")}, "transformer.memory_rate: 100000000000.0 lacks a unit"),
        (["-s", "ddp", "--trace", "job.toml/step.json"], {}, "--trace job.toml/step.json: "),
        (["-s", "ddp", "--html", "job.toml/plan.html"], {}, "job.toml/plan.html: "),
        (["-n", "many"], {}, "-n: 'many' is not a number of ranks"),
        (["-n", "7"], {}, "world must be a multiple of ranks_per_host, 2, up to 131072, not 7"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_line_that_names_the_place(
    tmp_path, capsys, monkeypatch, options, change, message
):
    monkeypatch.chdir(tmp_path)
    assert plan(tmp_path, *options, **change) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
