"""Ranks die and come while they train: the survivors have the bits of an undisturbed training."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("torch")

from tests.conftest import slowly
from tests.elastic.ranks import Job
from tests.elastic.training import STEPS, Plan, check, train, undisturbed

pytestmark = pytest.mark.timeout(120)

KINDS = ["dp", "sharded1", "sharded2", "parameters"]


@pytest.fixture(scope="module")
def expected():
    return undisturbed()


def run(plan: Plan, members: int = 4) -> list:
    body = partial(train, plan=plan)
    job = Job(body, members, body, len(plan.after))
    return job.values(but=tuple(plan.dies))


def check_all(found, plan, expected):
    deaths = len(plan.dies)
    for number, own in enumerate(found):
        if number not in plan.dies:
            check(own, expected)
            assert own["tries"] - (STEPS - own["first"]) <= deaths  # a death costs one step at most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *slowly(1, 2, 3)])
def test_survivors_lose_no_step(kind, transport, seed, expected):
    plan = Plan(kind, dies={0: 4, 2: 11}, seed=seed)
    found = run(plan)
    check_all(found, plan, expected)
    assert [own["size"] for own in found if own] == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_die_at_once(kind, expected):
    copies = 2 if kind != "dp" else 0
    plan = Plan(kind, dies={1: 7, 2: 7}, copies=copies)
    check_all(run(plan), plan, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_newcomers_take_the_places(kind, transport, expected):
    plan = Plan(kind, minimum=4, dies={0: 4, 3: 11, 5: 17}, after={4: 0, 5: 3, 6: 5})
    found = run(plan)
    check_all(found, plan, expected)
    assert [own["size"] for own in found if own] == [4] * 4
    assert found[4]["first"] in (4, 5)
