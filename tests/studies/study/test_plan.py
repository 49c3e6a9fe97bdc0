"""Plans: what they name, and one line for each that is wrong."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pydantic")

from ringreduce.schedules import algorithms
from ringreduce.study.launch import drawn
from ringreduce.study.plan import Cell, Plan, different, read_plan, restored


def plan(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def test_a_plan_names_cells_and_entries(tmp_path):
    read = plan(
        tmp_path,
        'collectives = ["all_reduce", "all_gather"]\nsizes = ["64K", 10]\nworlds = [2, 3]\nwires = ["", "int8"]\n'
        'algorithms = ["ring", {name = "ring", label = "ring again"}, "swing"]\nmodel = "here.json"\n',
    )
    cells = read.cells(3)
    assert len(cells) == 8
    assert Cell("all_gather", "float32", "int8", 3, 12) in cells  # whole blocks of three ranks
    assert [str(entry) for entry in read.entries("all_reduce")] == ["ring", "ring again", "swing"]
    assert [str(entry) for entry in read.entries("all_gather")] == ["ring", "ring again"]
    assert read.model == tmp_path / "here.json"
    assert restored(read.model_dump(mode="json"), tmp_path) == read


def test_all_stands_for_the_catalogue_of_each_collective():
    names = [str(entry) for entry in Plan(collectives=["broadcast"]).entries("broadcast")]
    assert (names[0], sorted(names[1:])) == ("auto", ["chain", "direct", "tree"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kollektives = ['ring']", "kollektives: there is no such key"),
        ("algorithms = ['rong']", "algorithms: all_reduce: no algorithm is called 'rong'"),
        ("algorithms = ['ring', 'ring']", "algorithms: 'ring' appears twice; give one of them a label"),
        ("collectives = ['all']", "collectives.0: there is no collective 'all'; choose from all_reduce"),
        (
            "collectives = ['gather']\nalgorithms = ['auto', 'swing']",
            "gather: no algorithm is called 'swing'",
        ),
        (
            "collectives = ['gather', 'all_reduce']\nalgorithms = ['swing']",
            "algorithms: none of them is for gather",
        ),
        ("transports = ['udp']", "transports.0: there is no transport 'udp'"),
        ("wires = ['int4']", "wires.0: there is no wire format 'int4'; choose from bf16"),
        ("dtypes = ['float12']", "dtypes.0: there is no dtype 'float12'"),
        ("sizes = ['64 kilo']", "sizes.0: '64 kilo' is not a number of bytes"),
        ("worlds = [1]", "worlds.0 must be >= 2, not 1"),
        ("worlds = []", "worlds: List should have at least 1 item"),
        ("[launches]\nleast = 9\nmost = 3", "launches: least (9) must not exceed most (3)"),
        ("[launches]\nlowest = 9", "launches.lowest: there is no such key"),
        ("sizes = [", "Invalid value"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_line_with_its_place(tmp_path, text, error):
    with pytest.raises(ValueError) as caught:
        plan(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'plan.toml'}: ")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plans_differ_in_what_is_measured_and_not_in_when_to_stop():
    assert different(Plan(), Plan(budget_s=1, seed=3, interval=0.5)) == []
    assert different(Plan(), Plan(sizes=[4], worlds=[3])) == ["sizes", "worlds"]


def test_the_order_is_random_and_follows_from_seed_and_launch():
    cells = {cell: Plan().entries("all_reduce") for cell in Plan().cells(2)}
    first, again, second = drawn(cells, (1, 0)), drawn(cells, (1, 0)), drawn(cells, (1, 1))
    assert first == again != second
    for blocks in (first, second):
        assert {block.cell: sorted(map(str, block.entries)) for block in blocks} == {
            cell: sorted(map(str, entries)) for cell, entries in cells.items()
        }
    assert [block.cell for block in first] != list(cells)
    assert len({tuple(map(str, block.entries)) for block in first}) > 1


FUNCTION = """
from ringreduce.schedules import Recv, Round, Schedule, Send


def all_to_all_at_once(world, rank):
    others = [other for other in range(world) if other != rank]
    if world == 5:
        others = others[1:]
    receives = [Recv([0], other, reduce=True) for other in others]
    return Schedule("all_reduce", world, rank, 1, [Round([Send([0], others)], receives)])
"""


def test_an_algorithm_may_be_a_function_in_a_file_beside_the_plan(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    read = plan(tmp_path, 'algorithms = ["all", "mine.py:all_to_all_at_once"]\nworlds = [2, 3]\n')
    entries = read.entries("all_reduce")
    assert str(entries[-1]) == "mine.py:all_to_all_at_once"
    assert len({str(entry) for entry in entries}) == len(entries)
    assert len(entries) == 1 + len(algorithms("all_reduce"))  # auto; mine is registered
    assert list(read.files()) == [str(tmp_path / "mine.py")]
    assert restored(read.model_dump(mode="json"), tmp_path) == read
    with pytest.raises(ValueError, match=r"plan.toml: algorithm '.*' is wrong for 5 ranks"):
        plan(tmp_path, 'algorithms = ["mine.py:all_to_all_at_once"]\nworlds = [5]\n')
    with pytest.raises(ValueError, match=r"plan.toml: .*mine.py has no function called 'other'"):
        plan(tmp_path, 'algorithms = ["mine.py:other"]\n')
