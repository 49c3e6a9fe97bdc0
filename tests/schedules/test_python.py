"""Schedules as Python objects, and algorithms written in Python."""

import copy

import pytest

import ringreduce
from ringreduce import schedules
from ringreduce.schedules import Local, Recv, Round, Schedule, ScheduleError, Send


def ring(world, rank):
    """A ring all-reduce in ten lines, as docs/algorithms.md shows it."""
    after, before = (rank + 1) % world, (rank - 1) % world
    rounds = []
    for k in range(world - 1):
        out, into = (rank - k - 1) % world, (rank - k - 2) % world
        rounds.append(Round([Send([out], [after])], [Recv([into], before, reduce=True)]))
    for k in range(world - 1):
        out, into = (rank - k) % world, (rank - k - 1) % world
        rounds.append(Round([Send([out], [after])], [Recv([into], before)]))
    return Schedule("all_reduce", world, rank, chunks=world, rounds=rounds)


def test_schedule_comes_apart_into_plain_objects():
    plan = schedules.schedule("all_reduce", "one_shot", 3, 1)
    assert plan == Schedule(
        "all_reduce",
        3,
        1,
        chunks=1,
        rounds=[Round([Send([(0, 1)], [0, 2])], [Recv([0], 0, True), Recv([0], 2, True)])],
    )
    assert eval(repr(plan)) == plan
    plan.rounds[0].sends[0].peers.append(7)
    assert plan.rounds[0].sends[0].peers == [0, 2, 7]


def test_schedule_survives_the_way_to_c_and_back():
    plan = schedules.schedule("all_to_all", "bruck", 5, 3)
    assert (plan.scratch, plan.rounds[-1].locals) == (5, [Local((0, 3), (5, 3)), Local(4, 9)])
    assert copy.deepcopy(plan) == plan
    schedules.check([schedules.schedule("all_to_all", "bruck", 5, rank) for rank in range(5)])


def test_description_and_cost():
    plan = schedules.schedule("reduce_scatter", "bruck", 4, 2)
    assert str(plan) == (
        "reduce_scatter, rank 2 of 4, 4 chunks\n"
        "round 0: send chunks 0-1 to 0; add chunks 2-3 from 0\n"
        "round 1: send chunk 3 to 3; add chunk 2 from 1"
    )
    assert plan.cost() == (2, 0.75, 0.75)
    assert schedules.schedule("broadcast", "direct", 4, 2, root=2).cost() == (1, 3.0, 0.0)
    assert schedules.schedule("barrier", "dissemination", 3, 0).cost() == (2, 0.0, 0.0)


def test_listing():
    names = [entry.name for entry in schedules.algorithms("reduce_scatter")]
    assert names == ["ring", "recursive_halving", "bruck", "two_level", "direct"]
    eight = {entry.name: entry for entry in schedules.algorithms("all_reduce", world=8)}
    assert (eight["ring"].measured_rounds, eight["ring"].measured_bytes) == (14, 1.75)
    assert schedules.algorithms()[0].measured_rounds is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("all_reduce", "rong", 2, 0), "no all_reduce algorithm is called 'rong'; choose from ring, "),
        (("reduce_all", "ring", 2, 0), "no collective is called 'reduce_all'"),
        (("all_reduce", "ring", 0, 0), "world must be at least 1, not 0"),
        (("all_reduce", "ring", 2, 2), r"rank must be in \[0, 2\), not 2"),
        (("broadcast", "tree", 2, 0, -1), r"root must be in \[0, 2\), not -1"),
        (
            ("all_reduce", "two_level", 3, 0, 0, [0, 0]),
            "groups must name a group for each of 3 ranks, not for 2",
        ),
        (("all_reduce", "ring", 3, 0, 0, None, [0, 1]), "order must name each of 3 ranks once"),
        (("all_reduce", "ring", 3, 0, 0, None, [0, 1, 1]), "order must name each of 3 ranks once"),
        (("all_reduce", "ring", 3, 0, 0, None, [1, 2, 3]), "order must name each of 3 ranks once"),
    ],
)
def test_arguments_that_are_wrong(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        schedules.schedule(*arguments)


def test_listing_of_no_collective():
    with pytest.raises(ValueError, match="no collective is called 'none'"):
        schedules.algorithms("none")
    with pytest.raises(ValueError, match="world must be at least 1"):
        schedules.algorithms(world=-1)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda plan: setattr(plan, "world", "two"), TypeError, "world cannot be 'two'"),
        (lambda plan: setattr(plan, "collective", "all"), ValueError, "no collective is called 'all'"),
        (lambda plan: setattr(plan.rounds[0].sends[0], "peers", [None]), TypeError, "peer cannot be None"),
        (
            lambda plan: setattr(plan.rounds[0].sends[0], "chunks", [(1, 2, 3)]),
            ValueError,
            "must be \\(first, count",
        ),
        (lambda plan: setattr(plan.rounds[0].recvs[0], "chunks", ["a"]), TypeError, "chunk cannot be 'a'"),
        (lambda plan: setattr(plan, "rounds", [3]), AttributeError, "sends"),
    ],
)
def test_attributes_that_are_wrong(change, error, sentence):
    plans = [ring(2, 0), ring(2, 1)]
    change(plans[1])
    with pytest.raises(error, match=sentence):
        schedules.check(plans)


def test_algorithm_in_python_is_right():
    for world in range(1, 12):
        schedules.check(ring, world=world)
    with pytest.raises(TypeError, match="world must be an integer"):
        schedules.check(ring)


def test_registered_algorithm_is_found_by_name():
    assert schedules.custom("mine") is None
    schedules.register("mine", ring)
    assert schedules.custom("mine").function is ring
    assert schedules.schedule("all_reduce", "mine", 4, 2) == ring(4, 2)
    with pytest.raises(ValueError, match="rank must be in"):
        schedules.schedule("all_reduce", "mine", 4, 4)


def test_registered_algorithm_is_checked_once_for_a_world():
    calls = []

    def counted(world, rank):
        calls.append((world, rank))
        return ring(world, rank)

    schedules.register("counted", counted)
    assert calls == []
    for _ in range(3):
        schedules.schedule("all_reduce", "counted", 3, 0)
    assert calls == [(3, 0), (3, 1), (3, 2), (3, 0), (3, 0), (3, 0)]


def test_registered_algorithm_that_is_wrong_is_refused_when_used():
    def wrong_for_three(world, rank):
        plan = ring(world, rank)
        if world == 3 and rank == 1:
            plan.rounds.pop()
        return plan

    schedules.register("wrong", wrong_for_three)
    schedules.schedule("all_reduce", "wrong", 2, 0)
    with pytest.raises(ScheduleError, match="waits forever"):
        schedules.schedule("all_reduce", "wrong", 3, 0)


def test_names_that_cannot_be_registered():
    with pytest.raises(ValueError, match="already has an algorithm called 'ring' for all_reduce"):
        schedules.register("ring", ring)
    with pytest.raises(ValueError, match="no collective is called"):
        schedules.register("mine", ring, collective="all")
    schedules.register("mine", ring, collective="reduce")
    with pytest.raises(ScheduleError, match="'mine' returned a schedule for all_reduce, not reduce"):
        schedules.schedule("reduce", "mine", 2, 0)


def test_registered_algorithms_are_listed():
    schedules.register("mine", ring)
    schedules.register("not for three", lambda world, rank: ring(2 if world == 3 else world, rank))
    row = next(entry for entry in ringreduce.algorithms("all_reduce") if entry.name == "mine")
    assert row.source.startswith(__file__) and row.rounds == ""
    rows = {entry.name: entry for entry in ringreduce.algorithms("all_reduce", 3)}
    assert (rows["mine"].measured_rounds, rows["mine"].measured_bytes) == (4, rows["ring"].measured_bytes)
    assert "is wrong for 3 ranks" in rows["not for three"].restrictions
    assert rows["not for three"].measured_rounds is None
    assert "mine" not in schedules.table()


def from_root(world, rank, root=0):
    sends = [Round([Send([0], [each for each in range(world) if each != root])])] if world > 1 else []
    return Schedule(
        "broadcast", world, rank, 1, sends if rank == root else [Round(recvs=[Recv([0], root)])], root
    )


def test_a_function_that_takes_a_root_gets_it():
    schedules.register("mine", from_root, "broadcast")
    assert schedules.schedule("broadcast", "mine", 4, 2, root=2) == from_root(4, 2, 2)
    schedules.check(from_root, 4, root=3)


def test_a_function_that_takes_hosts_gets_the_ranks_of_each_group():
    seen = []

    def noted(world, rank, hosts):
        seen.append(hosts)
        return ring(world, rank)

    schedules.register("mine", noted)
    schedules.schedule("all_reduce", "mine", 4, 2, groups=[7, 3, 7, 3])
    schedules.schedule("all_reduce", "mine", 4, 2)
    assert seen[0] == [[0, 2], [1, 3]] and seen[-1] == [[0, 1, 2, 3]]


FILE = """
from ringreduce.schedules import Recv, Round, Schedule, Send, register

def star(world, rank, root):
    others = [each for each in range(world) if each != root]
    rounds = [Round([Send([0], others)])] if rank == root else [Round(recvs=[Recv([0], root)])]
    return Schedule("broadcast", world, rank, 1, rounds, root)

kept = register("star of the file", star, "broadcast")
number = 5
"""


def test_algorithms_of_a_file(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(FILE)
    for name in ("star", "kept"):
        loaded = schedules.load(f"{path}:{name}", world=3)
        assert (loaded.name, loaded.collective) == (f"{path}:{name}", "broadcast")
        assert schedules.schedule("broadcast", f"{path}:{name}", 3, 1, root=2) == loaded(3, 1, 2)
    for name, message in [
        (f"{path}:planet", "has no function called 'planet'"),
        (f"{path}:number", "has no function called 'number'"),
        (f"{tmp_path}/your.py:star", "there is no such file"),
        ("star", "does not name a function in a Python file"),
    ]:
        with pytest.raises(ValueError, match=message):
            schedules.load(name)
    (tmp_path / "beside.py").write_text("from my import star\n")
    assert schedules.load(f"{tmp_path}/beside.py:star").collective == "broadcast"
    path.write_text("import nothing_at_all\n")
    schedules.registry._files.clear()
    with pytest.raises(ValueError, match="cannot be run: ModuleNotFoundError"):
        schedules.load(f"{path}:star")
