"""Tables for algorithm="auto": made, kept, used where all ranks have the same, and refused where they are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

import ringreduce
from ringreduce import _engine
from ringreduce.cli import main
from ringreduce.model import Model, fit, fitting, tuning
from ringreduce.model.model import of_their_own
from ringreduce.simulate import Flat, Network, simulate
from tests.conftest import on_threads

SMALL = (64, 4 << 10, 256 << 10)
ROWS = [
    "all_reduce shm 2 0 4096 tree 65536 1",
    "all_reduce shm 2 -1 65536 ring 32768 2",
    "all_gather shm 2 -1 18446744073709551615 bruck 65536 1",
    "all_reduce tcp 2 -1 65536 swing 32768 2",
]


@pytest.fixture
def table(tmp_path, monkeypatch):
    path = tmp_path / "a.tuning"
    path.write_text("# heading\n\n" + "\n".join(ROWS) + "\n")
    monkeypatch.setenv("RINGREDUCE_TUNING", str(path))
    return path


def picked(comm):
    x = np.full(1000, comm.rank + 1.0)
    comm.all_reduce(x)
    assert (x == comm.size * (comm.size + 1) / 2).all()
    choices = [comm.explain(size) for size in (64 << 10, 64 << 20)] + [comm.explain(64, "all_gather")]
    return [choice.algorithm for choice in choices], choices[0].slice_bytes, choices[0].reason


def test_rows_come_before_the_shipped_ones(table):
    (names, slice_bytes, reason), other = ringreduce.run(picked, 2)
    assert (names, slice_bytes, reason) == other
    assert names == ["ring", "two_shot", "bruck"] and slice_bytes == 32 << 10
    assert reason.startswith("tuned here: measured as the fastest all_reduce for buffers up to 64 KiB")
    assert ringreduce.run(picked, 2, transport="tcp")[0][0][0] == "swing"
    names, _, reason = ringreduce.run(picked, 3)[0]
    assert names[:2] == ["two_shot"] * 2 and reason.startswith("measured ")  # nothing is said of 3 ranks
    assert _engine.choose("all_reduce", 64 << 10, 2)[0] == "ring"
    # They hold for groups that are made of others, and for threads, too.
    assert on_threads(2, picked)[0][0][0] == "ring"
    halves = ringreduce.run(lambda comm: picked(comm.split(comm.rank % 2)), 4)
    assert [names[0] for names, _, _ in halves] == ["ring"] * 4
    # Two ranks have a core each here only where there are two.
    assert _engine.choose("all_reduce", 4096, 2, "shm", False)[0] == "tree"


def test_rows_of_sockets_do_not_count_on_a_fabric(table):
    def chosen(transport):
        network = Network(topology=Flat(hosts=2, rate=1e9), transport=transport)
        name = _engine.choose("all_reduce", 64 << 10, 2, transport)[0]
        assert simulate("auto", 64 << 10, network).algorithm == name
        return name

    assert chosen("tcp") == "swing"
    assert chosen("ofi") == "one_shot"
    table.write_text(table.read_text().replace(" tcp ", " ofi "))
    assert chosen("tcp") == "one_shot"
    assert chosen("ofi") == "swing"
    assert _engine.choose("all_reduce", 4096, 2, "shm", True)[0] == "ring"


def test_other_tables_on_other_ranks_are_left_alone(table, tmp_path):
    """All must choose the same."""
    less = tmp_path / "less.tuning"
    less.write_text(ROWS[2] + "\n")

    def on_own_table(comm, others):
        with comm:
            if comm.rank == 1:
                os.environ["RINGREDUCE_TUNING"] = str(others)
            group = ringreduce.init(comm.rank, comm.size, comm.all_gather_object, timeout=20.0)
            return picked(group)

    for path, first in ((less, "two_shot"), (table, "ring")):
        for names, _, reason in ringreduce.run(on_own_table, 2, path):
            assert names[0] == first
            assert reason.endswith(
                "; the tables of ringreduce tune are ignored because they differ between ranks"
            ) == (path is less)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("all_reduce shm 2 0 4096 tree 65536", "expected 8 words"),
        ("all_reduce shm 2 0 4096 tree 65536 1 1", "expected 8 words"),
        ("all_reduce shm two 0 4096 tree 65536 1", "expected 8 words"),
        ("all_reduce shm 2 0 4096 oak 65536 1", "there is no all_reduce algorithm 'oak'"),
        ("all_reduce shm 2 0 4096 bruck 65536 1", "there is no all_reduce algorithm 'bruck'"),
        ("all_reduce pigeons 2 0 4096 tree 65536 1", "there are no tuning tables for transport 'pigeons'"),
        ("all_reduce shm 2 0 4096 tree 0 1", "slices and lanes must be at least 1"),
    ],
)
def test_a_wrong_row_is_named(table, row, wrong):
    table.write_text(f"# heading\n{row}\n")
    said = f"RINGREDUCE_TUNING: {table}, line 2: {wrong}; run ringreduce tune again, or delete the file"
    with pytest.raises(ValueError, match=f"^{said}$"):
        ringreduce.init(0, 1)


def test_a_file_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("RINGREDUCE_TUNING", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=f"^RINGREDUCE_TUNING: cannot read {tmp_path}/none$"):
        ringreduce.init(0, 1)
    monkeypatch.setenv("RINGREDUCE_TUNING", "off")
    ringreduce.init(0, 1).close()
    for name in ("RINGREDUCE_TUNING", "RINGREDUCE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for variable, folder in (
        ("HOME", ".cache/ringreduce"),
        ("XDG_CACHE_HOME", "ringreduce"),
        ("RINGREDUCE_CACHE", ""),
    ):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        ringreduce.init(0, 1).close()  # nothing is kept there
        kept = Path(_engine.tuning_file())
        assert (
            kept.parent == tmp_path / variable / folder / ringreduce.__version__ and kept.suffix == ".tuning"
        )


def test_rows_of_choices():
    one, other = tuning.Candidate("one_shot", 64 << 10, 1), tuning.Candidate("two_shot", 256 << 10, 2)
    choices = {("all_reduce", 2): {64: one, 512: one, 4096: other, 8192: other}}
    rest, crowded = tuning.REST, int(_engine.usable_cores() < 2)
    assert tuning.table(choices, "shm") == [
        f"all_reduce shm 2 {crowded} 512 one_shot 65536 1",
        f"all_reduce shm 2 {crowded} {rest} two_shot 262144 2",
    ]


def test_new_rows_replace_those_of_the_same_kind(table):
    tuning.write(table, ["all_reduce shm 2 -1 64 swing 1024 1"], Model(made={}, cores=2))
    assert tuning.read_rows(table) == [*ROWS[2:], "all_reduce shm 2 -1 64 swing 1024 1"]
    assert table.read_text().startswith("# Made by ringreduce tune.\n# date: ")
    assert not list(table.parent.glob("*.new"))
    assert _engine.choose("all_reduce", 64, 2)[0] == "swing"


@pytest.mark.slow
def test_only_what_the_model_is_unsure_of_is_measured(monkeypatch):
    """A model that is sure leaves its favourite and the usual choice; one that says little has all measured."""
    measured = []
    times = tuning._Tuner._times

    def noted(tuner, collective, size, candidates, kept):
        measured.append((size, {one.algorithm for one in (*candidates, *kept)}))
        return times(tuner, collective, size, candidates, kept)

    monkeypatch.setattr(tuning._Tuner, "_times", noted)
    monkeypatch.setattr(tuning._Tuner, "confirmed", lambda tuner, collective, found: found)
    known = ringreduce.run(fit, 2, 0.001, SMALL)[0]
    for errors, several in (((0.0, 0.0), False), ((1e9, 1e9), True)):
        measured.clear()
        model = known.model_copy(update={"inside": known.inside.model_copy(update={"errors": errors})})
        choices = on_threads(2, tuning.tune, model, ["all_reduce"], [64, 512], 0.001)
        assert choices[0] == choices[1]
        assert list(choices[0]["all_reduce", 2]) == [64, 512]
        previous: set[str] = set()
        for size in (64, 512):
            names = set().union(*(names for of, names in measured if of == size))
            if several:
                assert names >= set(of_their_own("all_reduce"))
            else:
                wanted = {_engine.choose("all_reduce", size, 2)[0], model.ranking(size, 2)[0].algorithm}
                assert names == (wanted | previous if len(wanted) > 1 else set())
            previous = {choices[0]["all_reduce", 2][size].algorithm}


def test_a_usual_choice_is_replaced_by_a_faster_one_only():
    for new, old, worth in (
        ([1.0, 1.0, 1.0], [1.2, 1.1, 1.1], True),
        ([1.0, 1.0, 1.0], [1.04, 1.04, 1.3], False),  # too little
        ([1.0, 1.0, 1.2], [1.5, 1.5, 1.1], False),  # not in every pass
    ):
        assert tuning._is_worth_it(new, old) == worth


@pytest.mark.slow
def test_a_choice_that_does_not_win_again_is_dropped(monkeypatch):
    usual, lucky = _engine.choose("all_reduce", 64, 2)[0], "ring"

    def times(tuner, collective, size, candidates, kept):
        wins = bool(candidates) or size == 512  # the second time, nothing but `kept` is measured
        seconds = {usual: 2.0, lucky: 1.0 if wins else 2.0}
        return {one: [seconds.get(one.algorithm, 3.0)] * 5 for one in (*kept, *candidates)}

    monkeypatch.setattr(tuning._Tuner, "_times", times)
    known = ringreduce.run(fit, 2, 0.001, SMALL)[0]
    unsure = known.model_copy(update={"inside": known.inside.model_copy(update={"errors": (1e9, 1e9)})})
    said: list[str] = []
    choices = on_threads(2, tuning.tune, unsure, ["all_reduce"], [64, 512], 0.001, said.append)[0]
    assert {size: one.algorithm for size, one in choices["all_reduce", 2].items()} == {64: usual, 512: lucky}
    assert [line for line in said if "did not win again" in line] == [said[2]]


def test_the_command_line_fits_explains_and_tunes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_CACHE", str(tmp_path))
    monkeypatch.setenv("RINGREDUCE_TUNING", "")
    monkeypatch.setitem(fitting.SIZES, "inside", SMALL)
    assert main(["fit", "-n", "2", "--budget", "0.001"]) == 0
    said = capsys.readouterr().out
    kept = next(tmp_path.rglob("*.json"))
    assert said.startswith("inside hosts: the costs alone explain") and said.endswith(f"Model: {kept}\n")
    assert main(["explain", "-b", "1M", "-n", "2", "--model", str(kept)]) == 0
    said = capsys.readouterr().out
    assert "made of" in said and "two_shot" in said and "%" in said
    assert main(["tune", "-n", "2", "-c", "all_gather", "-b", "64,128K", "--budget", "0.001"]) == 0
    said = capsys.readouterr().out
    rows = tuning.read_rows(next(tmp_path.rglob("*.tuning")))
    assert said.rstrip().endswith(f"{len(rows)} rows: {_engine.tuning_file()}") and rows[0].startswith(
        "all_gather shm 2 "
    )
    assert _engine.choose("all_gather", 64, 2)[3].startswith("tuned here: ")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["fit", "-n", "1"], "--ranks must be at least 2, not 1"),
        (["fit", "/proc/nowhere/x.json"], "/proc/nowhere"),
        (["tune", "-c", "all_produce"], "-c: there is no collective 'all_produce'"),
        (["tune", "-b", "2X"], "'2X' is not a number of bytes"),
        (["tune", "--model", "nowhere.json"], "nowhere.json: No such file"),
        (["explain", "-b", "8", "--model", "nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_errors_are_one_line(arguments, wrong, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RINGREDUCE_CACHE", str(tmp_path))
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert wrong in said and said.count("\n") == 1
