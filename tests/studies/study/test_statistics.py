"""Statistics of rows whose truth is known: false winners are rare, real differences are found, ties are declared."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("statsmodels")

from ringreduce.study import changes, load, summaries, winners
from ringreduce.study.folder import Study, as_rows, save

SIZES, WORLDS = (8, 512, 4 << 10, 64 << 10, 1 << 20, 16 << 20), (2, 4)


def row(launch, algorithm, time_us, nbytes=1024, world=2, mode="near"):
    return {
        "launch": launch, "block": 0, "order": 0, "collective": "all_reduce", "algorithm": algorithm,
        "transport": "shm", "dtype": "float32", "wire": "", "world": world, "nbytes": nbytes, "time_us": time_us,
        "q1_us": time_us, "q3_us": time_us, "min_us": time_us, "max_us": time_us, "iterations": 50, "warmup": 5,
        "late": 0, "outliers_us": "", "mode": mode, "probe_us": 0.06, "started": "2026-01-01T00:00:00Z",
        "predicted_us": np.nan,
    }  # fmt: skip


def measured(random, names, launches, factor=None, sizes=SIZES, worlds=WORLDS):
    """Launches of a machine that has two modes and drifts; each figure has noise with heavy tails of its own."""
    rows = []
    for launch in range(launches):
        far = random.random() < 0.3
        drift = random.normal(0, 0.1)
        for world in worlds:
            for nbytes in sizes:
                true = (1 + nbytes / 1e4) * world * (1.6 if far else 1.0) * np.exp(drift)
                for name in names:
                    noise = 0.03 * random.standard_t(3)
                    time = true * (factor or {}).get(name, 1.0) * np.exp(noise)
                    rows.append(row(launch, name, time, nbytes, world, "far" if far else "near"))
    return as_rows(rows)


@pytest.mark.slow
def test_the_same_algorithm_under_two_names_seldom_wins():
    random = np.random.default_rng(1)
    names = ("ring", "ring again")
    declared = [
        (winners(measured(random, names, int(random.integers(3, 20)))).winners.map(len) < 2).any()
        for _ in range(40)
    ]
    assert sum(declared) <= 1  # of studies in which any of twelve cells had a winner


def test_a_real_difference_is_found_and_a_small_one_is_a_tie():
    random = np.random.default_rng(2)
    factor = {"slow": 1.3, "nearly": 1.01, "ring": 1.0}
    table = winners(measured(random, tuple(factor), 15, factor))
    assert (table.winners.map(set) == {"ring", "nearly"}).mean() > 0.9
    assert (table.second == "slow").mean() > 0.9
    assert np.allclose(table.ratio.dropna(), 1.3, atol=0.1)
    assert (table.p[table.ratio.notna()] < 0.05).all()


def test_a_wild_launch_decides_nothing():
    """Neither against a difference that all others show, nor for one that they do not."""
    rows = measured(np.random.default_rng(1), ["slow", "fast"], 12, {"slow": 1.4}, sizes=[64], worlds=[2])
    wild = rows.copy()
    wild.loc[(wild.launch == 3) & (wild.algorithm == "fast"), "time_us"] *= 200
    for each in (rows, wild):
        assert list(winners(each).winners) == [("fast",)]
    same = measured(np.random.default_rng(1), ["one", "other"], 12, sizes=[64], worlds=[2])
    same.loc[(same.launch == 3) & (same.algorithm == "one"), "time_us"] *= 200
    assert len(winners(same).winners[0]) == 2


def test_one_launch_declares_no_winner():
    table = winners(as_rows([row(0, "ring", 1.0), row(0, "tree", 9.0)]))
    assert table.winners[0] == ("ring", "tree")
    assert (table.fastest[0], table.second[0], table.p[0]) == ("ring", "tree", 1)
    assert np.isnan(table.ratio[0])


def test_one_algorithm_is_alone():
    table = winners(as_rows([row(launch, "ring", 1.0 + launch) for launch in range(3)]))
    assert (table.winners[0], table.second[0]) == (("ring",), "")
    assert np.isnan(table.p[0])


def test_times_that_are_all_equal_are_compared():
    rows = [row(launch, name, us) for launch in range(4) for name, us in (("ring", 1.0), ("tree", 2.0))]
    table = winners(as_rows(rows))
    assert table.winners[0] == ("ring",)
    assert table.ratio[0] == 2


def test_intervals_of_medians_cover_them_about_as_often_as_they_say():
    random = np.random.default_rng(3)
    covered = []
    for _ in range(40):
        times = [row(n, f"a{k}", random.lognormal(0, 0.2)) for n in range(12) for k in range(10)]
        table = summaries(as_rows(times))
        covered += list((table.low_us <= 1) & (table.high_us >= 1))
    assert 0.88 < np.mean(covered) <= 1


def test_modes_do_not_widen_an_interval():
    near = [row(n, "ring", 1.0 + n / 1000, mode="near") for n in range(8)]
    far = [row(n + 8, "ring", 2.0 + n / 1000, mode="far") for n in range(7)]
    mixed = [dict(one, mode="") for one in near + far]
    within, without = (summaries(as_rows(rows)).iloc[0] for rows in (near + far, mixed))
    assert within.high_us - within.low_us < 0.1 * (without.high_us - without.low_us)
    assert within.busbw == within.algbw == pytest.approx(1024 / within.median_us * 1e6)


def test_changes_between_studies_are_found_and_others_are_not():
    random = np.random.default_rng(4)
    names = ("ring", "tree", "swing")
    before = measured(random, names, 20)
    after = measured(random, names, 20, {"tree": 1.5})
    table = changes(before, after)
    assert set(table.algorithm[table.change == "slower"]) == {"tree"}
    assert (table.change[table.algorithm == "tree"] == "slower").all()
    tree = table[table.algorithm == "tree"]
    assert ((tree.low < tree.ratio) & (tree.ratio < tree.high)).all()
    assert not (changes(before, measured(random, names, 20)).change != "").any()


def test_a_change_of_the_machines_mode_is_no_change_of_the_library():
    before = [row(n, "ring", 1.0 + n / 100, mode="near") for n in range(6)]
    after = [row(n, "ring", 1.0 + n / 100, mode="near") for n in range(3)]
    after += [row(n + 3, "ring", 3.0, mode="far") for n in range(6)]
    table = changes(as_rows(before), as_rows(after))
    assert (table["mode"][0], table.change[0]) == ("near", "")
    nothing = changes(as_rows(before), as_rows(after[3:]))
    assert np.isnan(nothing.ratio[0])


def test_a_folder_is_read_as_it_was_written(tmp_path):
    rows = as_rows([row(0, "ring", 1.25), dict(row(1, "tree", 2.0, mode=""), outliers_us="7.0 9.5")])
    save(Study({"sizes": ["1K"]}, {"cpu": "x"}, rows, tmp_path, "1.0"))
    study = load(tmp_path)
    assert study.plan == {"sizes": ["1K"]}
    assert (study.facts, study.version) == ({"cpu": "x"}, "1.0")
    assert study.rows.equals(rows)
    assert list(study.rows["mode"]) == ["near", ""]
    assert not list(tmp_path.glob("*.new"))


def test_a_folder_that_is_none_is_refused_in_one_line(tmp_path):
    def refusal():
        with pytest.raises(ValueError) as caught:
            load(tmp_path)
        text = str(caught.value)
        assert text.startswith(str(tmp_path))
        assert "\n" not in text
        return text

    assert "study.json is missing" in refusal()
    head = tmp_path / "study.json"
    head.write_text("{")
    refusal()
    head.write_text("{}")
    assert '"format" is missing' in refusal()
    head.write_text('{"format": 7}')
    assert refusal() == f"{head} was written in format 7; this version reads format 1"
    head.write_text(json.dumps({"format": 1, "ringreduce": "1", "plan": {}, "facts": {}}))
    assert load(tmp_path).rows.empty
    (tmp_path / "rows.csv").write_text("launch,block\n0,1\n")
    assert "column 'order' is missing" in refusal()
    save(Study({}, {}, as_rows([row(0, "ring", 1.0)]), tmp_path, "1"))
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace("1024", "many"))
    assert "many" in refusal()
