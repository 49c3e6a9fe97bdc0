"""The simulation of a step: streams, waiting, and resources that operations share."""

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan.operations import Operations
from ringreduce.studies.plan.step import Demand, chain, run


def times(steps, *demands):
    return [(round(one.began, 9), round(one.ended, 9)) for one in run(steps.all, demands)]


def test_a_stream_does_one_thing_at_a_time():
    steps = Operations()
    steps.compute("a", "forward", 0)
    steps.compute("b", "forward", 0)
    assert times(steps, Demand(1.0), Demand(2.0)) == [(0, 1), (1, 3)]


def test_streams_run_side_by_side_and_wait_for_what_they_name():
    steps = Operations()
    a = steps.compute("a", "backward", 0)
    sent = steps.exchange("x", "all_reduce", 8, [a])
    steps.compute("b", "backward", 0)
    steps.compute("end", "optimizer", 0, [sent])
    found = times(steps, Demand(1.0), Demand(3.0), Demand(2.0), Demand(0.5))
    assert found == [(0, 1), (1, 4), (1, 3), (4, 4.5)]


def test_operations_whose_shares_fit_do_not_disturb_each_other():
    steps = Operations()
    steps.exchange("x", "all_gather", 8, stream="one")
    steps.exchange("y", "all_gather", 8, stream="other")
    assert times(steps, Demand(1.0, {"link": 0.4}), Demand(2.0, {"link": 0.6})) == [(0, 1), (0, 2)]


def test_operations_share_what_both_need():
    """Both want the whole link: together they take the sum, and the shorter one ends when it has had its half."""
    steps = Operations()
    steps.exchange("x", "all_gather", 8, stream="one")
    steps.exchange("y", "all_gather", 8, stream="other")
    assert times(steps, Demand(1.0, {"link": 1.0}), Demand(2.0, {"link": 1.0})) == [(0, 2), (0, 3)]


def test_the_chain_is_what_the_end_waited_for_and_adds_up_to_the_step():
    steps = Operations()
    a = steps.compute("a", "backward", 0)
    x = steps.exchange("x", "all_reduce", 8, [a])
    steps.compute("b", "backward", 0)
    steps.compute("end", "optimizer", 0, [x])
    found = run(steps.all, [Demand(1.0), Demand(3.0), Demand(2.0), Demand(0.5)])
    assert [found[number].operation.name for number in chain(found)] == ["a", "x", "end"]
    assert sum(found[n].ended - found[n].began for n in chain(found)) == pytest.approx(4.5)


def test_operations_that_wait_for_each_other_are_an_error():
    steps = Operations()
    steps.compute("a", "forward", 0, [1])
    steps.exchange("x", "all_reduce", 8, [0])
    with pytest.raises(ValueError, match="wait for each other"):
        run(steps.all, [Demand(1.0), Demand(1.0)])
