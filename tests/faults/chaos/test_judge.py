"""The judge of trials: it must see what is wrong, and nothing where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.chaos import plan
from tests.faults.chaos.judge import judge
from tests.faults.chaos.plan import Fault
from tests.faults.chaos.run import Outcome, Story
from tests.faults.chaos.table import Result, table


def _trial(kind, moment="between", transport="shm", world=3, **more):
    drawn = plan.draw_of(1, 0, transport, kind, moment, 1.0)
    faults = (Fault(2, kind, moment, 3),)
    if moment == "shrink":
        faults = Fault(0, "kill", "between", 3), Fault(2, kind, moment, 3)
    return replace(drawn, world=world, hosts=(0,) * world, faults=faults, **more)


def _error(kind, rank, at=10.1, began=9.9):
    return {"type": kind, "rank": rank, "text": "", "began": began, "at": at}


def _survivor(kind="PeerLost", rank=2, members=(0, 1), **more):
    error = _error(kind, rank)
    return Story(
        {"joined": 1.0, "error": error, "again": error, "members": list(members), "left": []} | more, 0
    )


def _dead():
    return Story({"joined": 1.0, "fault": 10.0}, -9)


def _wrong(trial, *stories, left=(), within=None):
    return set(judge(trial, Outcome(list(stories), list(left), 1.0), within).wrong)


def test_all_is_well():
    verdict = judge(_trial("kill"), Outcome([_survivor(), _survivor(), _dead()], [], 1.0))
    assert not verdict.wrong
    assert verdict.seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("survivor", "wrong"),
    [
        (_survivor("TimeoutError"), "error"),
        (_survivor(rank=0), "rank"),
        (_survivor(rank=None), "rank"),
        (_survivor(members=[0, 1, 2]), "agreement"),
        (_survivor(again=_error("TimeoutError", 2)), "error"),
        (_survivor(wrong="call 2"), "values"),
        (_survivor(left=["fd socket:[1]"]), "left"),
        (_survivor(crashed="Traceback"), "error"),
        (Story({"joined": 1.0, "finished": 100}, 0), "error"),
        (Story(_survivor().events, None), "error"),
        (Story(_survivor().events, -11), "error"),
    ],
)
def test_a_survivor_goes_wrong(survivor, wrong):
    assert _wrong(_trial("kill"), _survivor(), survivor, _dead()) == {wrong}


def test_shrink_fails_on_a_survivor():
    failing = _survivor(shrink=_error("TimeoutError", 0))
    del failing.events["members"]
    assert _wrong(_trial("kill"), _survivor(), failing, _dead()) == {"agreement"}


def test_something_is_left_behind():
    assert _wrong(_trial("kill"), _survivor(), _survivor(), _dead(), left=["process 7"]) == {"left"}


def test_an_error_comes_late():
    slow = _survivor(error=_error("PeerLost", 2, at=14.0))
    assert _wrong(_trial("kill"), _survivor(), slow, _dead()) == set()
    assert _wrong(_trial("kill"), _survivor(), slow, _dead(), within=3.0) == {"slow"}


@pytest.mark.parametrize("kind", ["stop", "never"])
def test_a_rank_that_hangs_is_a_timeout(kind):
    trial = _trial(kind)
    hanging = Story({"joined": 1.0, "fault": 10.0}, None)
    timed_out = _survivor("TimeoutError")
    assert _wrong(trial, timed_out, timed_out, hanging) == set()
    assert _wrong(trial, timed_out, _survivor(), hanging) == {"error"}


def test_the_time_of_a_timeout_is_not_counted():
    story = _survivor("TimeoutError", error=_error("TimeoutError", 2, at=11.2, began=9.9))
    found = judge(_trial("stop", timeout=1.0), Outcome([story, story, _dead()], [], 1.0))
    assert found.seconds == pytest.approx(0.3)


def test_whoever_closed_is_told_so():
    closed = Story({"joined": 1.0, "fault": 10.0, "error": _error("ClosedError", None), "left": []}, 0)
    assert _wrong(_trial("close"), _survivor(), _survivor(), closed) == set()
    assert _wrong(_trial("close"), _survivor(), _survivor(), _survivor()) == {"error"}


def test_a_late_rank_is_waited_for():
    well = Story({"joined": 1.0, "finished": 12, "left": []}, 0)
    assert _wrong(_trial("late"), well, well, well) == set()
    assert _wrong(_trial("late"), well, _survivor("TimeoutError"), well) == {"error"}


def test_all_go_on_after_a_mismatch():
    one = _survivor("MismatchError", 1, members=[0, 1, 2])
    assert _wrong(_trial("mismatch"), one, one, one) == set()
    assert _wrong(_trial("mismatch"), one, one, _survivor("MismatchError", 1)) == {"agreement"}


def test_a_rank_dies_in_shrink():
    trial = _trial("kill", "shrink", world=4)
    stories = [_dead(), _survivor(rank=0), _dead(), _survivor(rank=0)]

    def ending(**more):
        story = _survivor(rank=0, **more)
        if "members" not in more:
            del story.events["members"]
        return story

    without = ending(members=[1, 3])
    lost = ending(after=_error("PeerLost", 1))  # number 1 of the ranks 1, 2 and 3
    other = ending(after=_error("PeerLost", 2))
    for one, two, wrong in [
        (without, without, set()),
        (lost, lost, set()),
        (without, lost, {"agreement"}),
        (lost, other, {"agreement"}),
        (ending(members=[1, 2, 3]), ending(members=[1, 2, 3]), {"agreement"}),
    ]:
        stories[1], stories[3] = one, two
        assert _wrong(trial, *stories) == wrong


def test_both_sides_of_a_cut_are_judged():
    trial = replace(_trial("cut", transport="tcp"), hosts=(0, 1, 2))
    alone = _survivor(rank=1, shrink=_error("MinorityError", 0), fault=10.0)
    del alone.events["members"]
    assert _wrong(trial, _survivor(), _survivor(), alone) == set()
    assert _wrong(trial, _survivor(), _survivor(), _survivor(rank=1, members=[2])) == {"agreement"}
    blaming_itself = Story(alone.events | {"error": _error("PeerLost", 2), "again": _error("PeerLost", 2)}, 0)
    assert _wrong(trial, _survivor(), _survivor(), blaming_itself) == {"rank"}


def test_one_half_of_a_cut_goes_on():
    trial = replace(
        _trial("cut", transport="tcp", world=2), hosts=(0, 1), faults=(Fault(0, "cut", "between", 3),)
    )
    first, second = _survivor(rank=1, members=[0]), _survivor(rank=0, shrink=_error("MinorityError", 0))
    del second.events["members"]
    assert _wrong(trial, first, second) == set()
    assert _wrong(trial, first, _survivor(rank=0, members=[1])) == {"agreement"}


def _together(*members, **more):
    return Story({"joined": 1.0, "finished": 9, "members": list(members), "left": []} | more, 0)


@pytest.mark.parametrize(
    ("third", "wrong"),
    [
        (_together(0, 3, 2), set()),
        (_together(0, 2), {"agreement"}),
        (_together(0, 2, 3, misblamed="rank 0"), {"rank"}),
        (_together(0, 2, 3, wrong="a sum"), {"values"}),
        (Story({"joined": 1.0}, None), {"agreement", "error"}),
    ],
)
def test_newcomers_and_members_end_together(third, wrong):
    trial = replace(_trial("join and kill"), newcomers=(0.0,), faults=(Fault(1, "kill", "any"),))
    assert _wrong(trial, _together(0, 2, 3), _dead(), third, _together(0, 2, 3)) == wrong


def test_trials_are_drawn_from_a_seed():
    among = plan.cells(plan.TRANSPORTS)
    first = [plan.draw(7, number, among) for number in range(3 * len(among))]
    assert first == [plan.draw(7, number, among) for number in range(3 * len(among))]
    assert first != [plan.draw(8, number, among) for number in range(3 * len(among))]
    for turn in range(3):
        drawn = first[turn * len(among) : (turn + 1) * len(among)]
        assert sorted((trial.transport, trial.kind, trial.moment) for trial in drawn) == sorted(among)
    for trial in first:
        assert trial == plan.draw_of(7, trial.number, trial.transport, trial.kind, trial.moment, 1.0)
        assert all(0 <= rank < trial.everyone <= 8 for rank in trial.victims)
        assert len(trial.victims) < trial.world


def test_a_table_counts():
    results = [
        Result("kill", "shm", frozenset(), 0.1),
        Result("kill", "shm", frozenset({"rank"}), 0.3),
        Result("stop", "tcp", frozenset({"error", "left"}), None),
    ]
    lines = table(results).splitlines()
    assert lines[2] == "| kill | shm | 2 | 2 | 1 | 2 | 0 | 0.200 | 0.300 | 0.300 |"
    assert lines[3] == "| stop | tcp | 1 | 0 | 0 | 1 | 1 |  |  |  |"
    assert lines[4] == "| all |  | 3 | 2 | 1 | 3 | 1 | 0.200 | 0.300 | 0.300 |"
