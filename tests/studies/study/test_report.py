"""The report's file: everything is in it, and nothing that a name could smuggle in."""

from __future__ import annotations

import json
import math
import re

import pandas as pd
import pytest

from ringreduce.study.folder import load
from ringreduce.study.report import write, write_map
from ringreduce.study.report.figures import figures
from ringreduce.study.report.prediction_errors import predictions
from ringreduce.study.report.winners_map import winners_map
from tests.studies.study import synthetic

NASTY = "</script><script>alert(1)</script><b>\"'&{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return load(synthetic.write(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def found(study):
    return figures(study)


@pytest.fixture(scope="module")
def page(study, tmp_path_factory):
    return written(study, tmp_path_factory.mktemp("report"))


FEW = {"worlds": (2,), "collectives": ("all_reduce",)}


def written(study, tmp_path):
    write(study, tmp_path / "new" / "report.html")
    return (tmp_path / "new" / "report.html").read_text()


def without_libraries(page):
    return "".join(
        part for part in re.split(r"(?s)(<script>.*?</script>)", page) if "plotly.js" not in part[:99]
    )


def test_nothing_comes_from_elsewhere(page):
    page = without_libraries(page)
    assert len(page) < 700_000
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:|//)", page)
    assert '<link rel="icon" href="data:,">' in page and page.count("<link") == 1


def test_names_are_text(tmp_path):
    study = load(synthetic.write(tmp_path, names=["ring", NASTY], launches=3, **FEW))
    page = without_libraries(written(study, tmp_path))
    assert "<script>alert" not in page and "49" not in re.findall(r"&amp;(\d*)", page)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert [one["name"] for one in data["algorithms"]][:2] == ["ring", NASTY]


def test_facts_and_plan_are_there(page):
    assert "<dt>cpu</dt><dd>a CPU &lt;fast&gt;" in page
    assert "<dt>python</dt><dd>3.11" in page
    assert "<dt>worlds</dt><dd>2, 4" in page.replace("\n", "")


def test_nothing_measured(study, tmp_path):
    study = load(synthetic.write(tmp_path, launches=0))
    with pytest.raises(ValueError, match=r"nothing has been measured yet"):
        write(study, tmp_path / "report.html")


@pytest.mark.slow
def test_a_file_that_cannot_be_written(study, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/report\.html: "):
        write(study, tmp_path / "file" / "report.html")


@pytest.mark.slow
def test_modes_can_be_told_apart(found):
    assert found.modes == ["", "near", "far"]
    by_mode = found.points.groupby("mode")["launches"].max()
    assert by_mode.to_dict() == {"": 8, "far": 2, "near": 6}


def test_winners_are_marked(found):
    points = found.points
    cell = points[(points["mode"] == "") & (points["world"] == 4) & (points["collective"] == "all_reduce")]
    small = cell[cell["nbytes"] == 8].set_index("algorithm")["place"].to_dict()
    assert small == {"auto": "ties", "one_shot": "ties", "ring": "", "two_shot": "", "tree": ""}
    large = cell[cell["nbytes"] == 64 << 20].set_index("algorithm")["place"].to_dict()
    assert large == {"auto": "", "one_shot": "", "ring": "wins", "two_shot": "", "tree": ""}


@pytest.mark.slow
def test_the_map_names_ties(study, tmp_path):
    write_map(study, tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text()
    words = re.findall(r"<text[^>]*>([^<]*)", drawn)
    assert words.count("2 ranks") == words.count("4 ranks") == 1
    assert "tie: one_shot" in words and "tie: auto" not in words
    assert [each for each in words if re.fullmatch(r"two_shot 1\.\d\d \N{MULTIPLICATION SIGN}", each)]
    assert "8 B, 2 ranks: " in drawn and drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')


def test_the_map_counts_those_of_a_large_tie(tmp_path):
    names = [f"a{number}" for number in range(6)]
    write_map(load(synthetic.write(tmp_path, names=[*names, "ring"], **FEW)), tmp_path / "map.svg")
    words = re.findall(r"<text[^>]*>([^<]*)", (tmp_path / "map.svg").read_text())
    after = words.index("tie of 6")
    assert re.fullmatch(r"all but ring \d\.\d\d \N{MULTIPLICATION SIGN}", words[after + 1])
    assert "a0, a1, a2, a3, a4, a5 tie" in (tmp_path / "map.svg").read_text()


def test_the_map_counts_those_that_tie_in_part():
    cell = {"nbytes": 8, "world": 2, "fastest": "a", "second": "d", "ratio": 2.0, "p": 0.01}
    tie = pd.DataFrame([{**cell, "winners": ("a", "b", "c"), "behind": ("c",)}])
    points = pd.DataFrame(
        {"nbytes": 8, "world": 2, "algorithm": list("abcd"), "median_us": [1.0, 1.1, 1.2, 2.0]}
    )
    words = re.findall(r"<text[^>]*>([^<]*)", winners_map(tie, points, dict.fromkeys("abcd", "red"), "title"))
    assert words[2:] == ["tie: a", "b", "and 1 in part", "d 2.00 \N{MULTIPLICATION SIGN}"]


def test_errors_of_predictions(found):
    found = predictions(found)
    assert found.all.cells == 72 and found.choices == 24
    assert 5 < found.all.bias < 9 and found.all.median <= found.all.nine_tenths <= found.all.worst
    assert [one.algorithm for one in found.each] == ["ring", "one_shot", "two_shot", "tree", "tree", "chain"]
    assert found.right == found.choices


@pytest.mark.slow
def test_without_predictions_there_is_no_word_of_them(tmp_path):
    study = load(synthetic.write(tmp_path, predict=False, launches=3, **FEW))
    assert predictions(figures(study)) is None
    page = without_libraries(written(study, tmp_path))
    assert "Predicted and measured" not in page and 'show-predictions"' not in re.sub(
        "<script>.*", "", page, flags=re.S
    )


def test_one_launch_has_no_intervals(tmp_path):
    found = figures(load(synthetic.write(tmp_path, launches=1, **FEW)))
    assert found.modes == [""] and found.points["low_us"].map(math.isnan).all()
    assert set(json.loads(found.json())["points"]["low_us"]) == {None}
