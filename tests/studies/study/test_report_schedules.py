"""What a drawing says of a schedule is what the schedule does."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest

from ringreduce.cli import main
from ringreduce.schedules import Recv, Round, Schedule, ScheduleError, Send, algorithms
from ringreduce.study.report.drawing import draw
from ringreduce.study.report.drawings import drawings, plans
from ringreduce.study.report.moves import is_result, moves, states

EVERY = [(entry.collective, entry.name) for entry in algorithms()]
SVG = "{http://www.w3.org/2000/svg}"


def result(collective, world, rank, chunk):
    """What is in a rank's chunk in the end: whose chunks, added."""
    if collective in ("all_reduce", "reduce_scatter", "reduce"):
        return {(each, chunk) for each in range(world)}
    if collective in ("scan", "exscan"):
        return {(each, chunk) for each in range(rank + (collective == "scan"))}
    if collective == "barrier":
        return {(each, 0) for each in range(world)}
    origins = {"broadcast": (0, chunk), "scatter": (0, chunk), "all_to_all": (chunk, rank)}
    return {origins.get(collective, (chunk, chunk))}


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_ranks_end_with_the_result(collective, algorithm):
    for world in (2, 3, 4, 6):
        schedules, _ = plans(collective, algorithm, world, hosts=2)
        for plan, rank in zip(schedules, states(schedules), strict=True):
            for chunk, value in enumerate(rank[-1]):
                if is_result(plan, chunk) or collective == "barrier":
                    assert value == result(collective, world, plan.rank, chunk)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_each_chunk_on_its_way_is_an_arrow(collective, algorithm):
    schedules, hosts = plans(collective, algorithm, 4, hosts=2)
    picture = ElementTree.fromstring(draw(schedules, hosts))
    arrows = [group for group in picture.iter(f"{SVG}g") if group.get("class") == "move"]
    dashed = [group for group in arrows if any(line.get("stroke-dasharray") for line in group)]
    adding = [move.adds for move in moves(schedules)]
    assert (len(arrows), len(dashed)) == (len(adding), adding.count(False))
    boxes = [group for group in picture.iter(f"{SVG}g") if group.get("class") == "chunk"]
    rounds = max(len(plan.rounds) for plan in schedules)
    assert len(boxes) == sum((rounds + 1) * (max(plan.chunks, 1) + plan.scratch) for plan in schedules)


def test_arrows_say_who_sends_what():
    picture = ElementTree.fromstring(draw(plans("all_reduce", "ring", 4)[0]))
    tips = Counter(tip.text for tip in picture.iter(f"{SVG}title"))
    assert tips["round 0: rank 0 sends chunk 3 to rank 1, which adds it to chunk 3"] == 1
    assert tips["round 3: rank 3 sends chunk 3 to rank 2, which puts it into chunk 3"] == 1


def test_hosts_are_shown_where_they_matter():
    assert plans("all_reduce", "two_level", 4, hosts=2)[1] == [0, 0, 1, 1]
    assert plans("all_reduce", "ring", 4, hosts=2)[1] == []
    assert "host 1" in draw(*plans("all_reduce", "two_level", 4, hosts=2))


def test_a_message_may_wait_for_a_later_round_of_its_receiver():
    swap = [Recv([0], 1, reduce=True)], [Send([0], [1])]
    first = Schedule("all_reduce", 2, 0, 1, [Round(sends=swap[1]), Round(), Round(recvs=swap[0])])
    second = Schedule(
        "all_reduce", 2, 1, 1, [Round(sends=[Send([0], [0])], recvs=[Recv([0], 0, reduce=True)])]
    )
    assert [rank[-1] for rank in states([first, second])] == [[{(0, 0), (1, 0)}]] * 2
    late = next(move for move in moves([first, second]) if move.receiver == 0)
    assert (late.begins, late.ends) == (0, 2)


def test_a_wrong_schedule_is_refused():
    with pytest.raises(ScheduleError, match="rank 0"):
        draw([Schedule("all_reduce", 2, rank, 1, []) for rank in range(2)])


def test_without_a_drawing_there_is_a_reason():
    found = drawings(
        [("all_reduce", "mine"), ("all_reduce", "auto"), ("all_reduce", "nobody's")], {"mine": "ring"}
    )
    mine, auto, unknown = found
    assert mine.algorithm == "mine" and mine.svg.startswith("<svg") and not mine.missing
    assert not auto.svg and auto.missing.startswith("auto chooses one of the others")
    assert not unknown.svg and "nobody's" in unknown.missing


def command(capsys, *words):
    status = main(["schedule", *map(str, words)])
    return status, *capsys.readouterr()


def test_schedules_are_printed_and_drawn(capsys, tmp_path):
    picture = tmp_path / "new" / "ring.svg"
    status, out, _ = command(capsys, "ring", "-n", 3, "--picture", picture)
    assert status == 0 and out.count("all_reduce, rank ") == 3 and "round 3: send chunk" in out
    assert ElementTree.parse(picture).getroot().tag == f"{SVG}svg"


def test_algorithms_of_files_are_drawn(capsys, tmp_path):
    file = tmp_path / "my.py"
    ring = "    return schedule('all_gather', 'ring', world, rank)"
    file.write_text(f"from ringreduce import schedule\ndef mine(world, rank):\n{ring}")
    status, out, _ = command(capsys, f"{file}:mine", "-n", 3)
    assert status == 0 and out.startswith("all_gather, rank 0 of 3")
    found = list(
        drawings(
            [("all_gather", "mine"), ("all_gather", "other")],
            {"mine": f"{file}:mine", "other": f"{file}:other"},
        )
    )
    assert found[0].svg and found[1].missing == f"no drawing: {file} has no function called 'other'"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.py:mine"], "no.py: there is no such file"),
        (["rng"], "no all_reduce algorithm is called 'rng'"),
        (["ring", "-c", "all"], "no collective is called 'all'"),
        (["ring", "-n", 0], "--ranks must be an integer from 1 to 256, not 0"),
        (["ring", "--hosts", 9], "--hosts must be an integer from 1 to 4, not 9"),
        (["ring", "-n", 40, "--picture", "no.svg"], "a drawing of 40 ranks would have 126400 boxes"),
        (["ring", "--picture", "/dev/null/no.svg"], "/dev/null/no.svg: "),
    ],
)
def test_bad_words_get_one_line(capsys, words, message):
    status, _, error = command(capsys, *words)
    assert status == 2 and error.count("\n") == 1 and message in error
