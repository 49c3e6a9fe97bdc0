"""The table of collectives says what the schedules do, and what those say that cannot import it."""

import inspect

import pytest
import reference

import ringreduce
from ringreduce.schedules import COLLECTIVES, algorithms, schedule
from ringreduce.studies.bench import problem


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_result_is_where_the_table_says(name):
    world, root = 4, 2
    for entry in algorithms(name):
        for rank in range(world):
            plan = schedule(name, entry.name, world, rank, root)
            chunks = [chunk for chunk in range(plan.chunks) if reference.has_result(plan, chunk)]
            every = list(range(plan.chunks))
            expected = {"own_block": [rank], "on_root": every if rank == root else [],
                        "before_own": every if rank > 0 else []}  # fmt: skip
            assert chunks == expected.get(COLLECTIVES[name].after, every)
            if COLLECTIVES[name].has_blocks:
                assert plan.chunks == world


def test_only_what_combines_takes_an_op_and_only_what_is_rooted_a_root():
    for name, one in COLLECTIVES.items():
        arguments = inspect.signature(getattr(ringreduce.Communicator, name)).parameters
        assert ("op" in arguments, "root" in arguments) == (one.reduces, one.rooted)


def test_names_for_programs_that_cannot_import_the_table():
    assert {name: (one.reduces, one.before, one.after) for name, one in COLLECTIVES.items()} == problem.FACTS
    assert set(problem.UNEVEN.values()) == {name for name, one in COLLECTIVES.items() if one.has_blocks}
    assert tuple(name for name, one in COLLECTIVES.items() if one.reduces) == reference.SUMS


def test_the_bandwidth_of_the_bus_is_that_of_nccl_tests():
    share = {name: one.bus_factor(4) for name, one in COLLECTIVES.items() if name != "barrier"}
    whole = dict.fromkeys(("broadcast", "reduce", "scan", "exscan"), 1.0)
    assert share == {**dict.fromkeys(share, 0.75), "all_reduce": 1.5, **whole}
