"""Every algorithm of the catalogue is right for every world, and costs what it says."""

from math import ceil, floor, log2

import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import is_right

from ringreduce import schedules
from ringreduce._engine import schedules as engine

CATALOGUE = [(entry.collective, entry.name) for entry in schedules.algorithms()]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# A round per rank and rank makes a million rounds at 1,000.
QUADRATIC = ("ring", "bidirectional_ring", "chain", "pairwise")


def ceil_log(n):
    return (n - 1).bit_length()


def floor_log(n):
    return n.bit_length() - 1


def is_power_of_two(n):
    return n & (n - 1) == 0


def below(n):
    """The largest power of two that is not above n."""
    return 2 ** floor_log(n)


def group_size(n):
    divisors = [m for m in range(1, n + 1) if n % m == 0]
    return min(divisors, key=lambda m: abs(m - n**0.5))


def taken_by(position, n):
    """Chunks that a rank takes in recursive halving: its own half each time, once, twice or not at all."""
    if n == 1:
        return 0
    lower, upper = ceil(n / 2), floor(n / 2)
    odd = lower != upper
    if position < lower:
        alone = odd and position == lower - 1
        return (0 if alone else lower) + taken_by(position, lower)
    takes_two = odd and position == lower
    return (2 if takes_two else 1) * upper + taken_by(position - lower, upper)


def ones_below(n):
    return sum(i.bit_count() for i in range(n))


def largest_binomial_subtree(n):
    top = 2 ** ceil_log(n) // 2
    return max(n - top, top // 2)


def one_half(n):
    return (n - 1) / n


def both_halves(n):
    return 2 * (n - 1) / n


def rounds_of_groups(n):
    return ceil_log(group_size(n)) + ceil_log(n // group_size(n))


# (rounds, bytes that the busiest rank sends in units of S), as functions of the world, n > 1.
COST = {
    ("all_reduce", "ring"): (lambda n: 2 * (n - 1), both_halves),
    ("all_reduce", "bidirectional_ring"): (lambda n: 2 * (n - 1), both_halves),
    ("all_reduce", "recursive_doubling"): (
        lambda n: log2(n) if is_power_of_two(n) else floor_log(n) + 2,
        lambda n: log2(n) if is_power_of_two(n) else floor_log(n) + 1,
    ),
    ("all_reduce", "halving_doubling"): (
        lambda n: 2 * ceil_log(n),
        lambda n: (n - 1 + max(taken_by(r, n) for r in range(n))) / n,
    ),
    ("all_reduce", "tree"): (lambda n: 2 * ceil_log(n), ceil_log),
    ("all_reduce", "double_tree"): (lambda n: 2 * floor_log(n), lambda n: min(n / 2, 2)),
    ("all_reduce", "one_shot"): (lambda n: 1, lambda n: n - 1),
    ("all_reduce", "two_shot"): (lambda n: 2, both_halves),
    ("all_reduce", "swing"): (
        lambda n: 2 * floor_log(n) + (0 if is_power_of_two(n) else 2),
        lambda n: both_halves(below(n)) + (0 if is_power_of_two(n) else 1),
    ),
    ("all_reduce", "circulant"): (lambda n: 2 * ceil_log(n), both_halves),
    ("all_reduce", "two_level"): (lambda n: 2 * rounds_of_groups(n), both_halves),
    ("all_reduce", "leaders"): (lambda n: 3, lambda n: max(1, (n - 2) / (n // group_size(n)) + 1)),
    ("all_reduce", "synthesised"): (lambda n: 2 * (n - 1), lambda n: min(n - 1, 2)),
    ("reduce_scatter", "ring"): (lambda n: n - 1, one_half),
    ("reduce_scatter", "recursive_halving"): (ceil_log, one_half),
    ("reduce_scatter", "bruck"): (ceil_log, one_half),
    ("reduce_scatter", "two_level"): (rounds_of_groups, one_half),
    ("reduce_scatter", "direct"): (lambda n: 1, one_half),
    ("all_gather", "ring"): (lambda n: n - 1, one_half),
    ("all_gather", "recursive_doubling"): (ceil_log, lambda n: max(taken_by(r, n) for r in range(n)) / n),
    ("all_gather", "bruck"): (ceil_log, one_half),
    ("all_gather", "two_level"): (rounds_of_groups, one_half),
    ("all_gather", "direct"): (lambda n: 1, one_half),
    ("broadcast", "tree"): (ceil_log, ceil_log),
    ("broadcast", "chain"): (lambda n: n - 1, lambda n: 1),
    ("broadcast", "direct"): (lambda n: 1, lambda n: n - 1),
    ("reduce", "tree"): (ceil_log, lambda n: 1),
    ("reduce", "chain"): (lambda n: n - 1, lambda n: 1),
    ("reduce", "direct"): (lambda n: 1, lambda n: 1),
    ("gather", "tree"): (ceil_log, lambda n: largest_binomial_subtree(n) / n),
    ("gather", "direct"): (lambda n: 1, lambda n: 1 / n),
    ("scatter", "tree"): (ceil_log, one_half),
    ("scatter", "direct"): (lambda n: 1, one_half),
    ("all_to_all", "pairwise"): (lambda n: n if n > 2 else 1, one_half),
    ("all_to_all", "bruck"): (lambda n: ceil_log(n) + 1, lambda n: ones_below(n) / n),
    ("all_to_all", "direct"): (lambda n: 1, one_half),
    ("scan", "chain"): (lambda n: n - 1, lambda n: 1),
    ("scan", "doubling"): (ceil_log, ceil_log),
    ("scan", "direct"): (lambda n: 1, lambda n: n - 1),
    ("exscan", "chain"): (lambda n: n - 1, lambda n: min(n - 1, 2)),
    ("exscan", "doubling"): (
        lambda n: max(ceil(log2(4 * (n - 1) / 3)), 1),
        lambda n: ceil(log2(4 * (n - 1) / 3)) + 1 if n > 3 else n - 1,
    ),
    ("exscan", "direct"): (lambda n: min(n - 1, 2), lambda n: n - 1),
    ("barrier", "dissemination"): (ceil_log, lambda n: 0),
    ("barrier", "direct"): (lambda n: 1, lambda n: 0),
}


@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_is_right_for_worlds_1_to_64(collective, name):
    for world in range(1, 65):
        assert engine.check_algorithm(collective, name, world) == "", f"world {world}"


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_is_right_for_large_worlds(collective, name):
    for world in (127, 128, 257) if name in QUADRATIC else (127, 128, 257, 1000):
        assert engine.check_algorithm(collective, name, world) == "", f"world {world}"


@pytest.mark.parametrize(("collective", "name"), [pair for pair in CATALOGUE if pair[0] in ROOTED])
def test_is_right_for_every_root(collective, name):
    for world in range(1, 18):
        for root in range(world):
            assert engine.check_algorithm(collective, name, world, root) == "", f"world {world}, root {root}"


@pytest.mark.parametrize("entry", schedules.algorithms(), ids=lambda e: f"{e.collective}-{e.name}")
def test_combines_in_the_order_that_it_states(entry):
    """The least order of all worlds and roots, and of unusual groups, orders and trees."""
    cases = [(world, 0) for world in range(1, 65)]
    if entry.collective in ROOTED:
        cases += [(world, root) for world in range(2, 18) for root in range(1, world)]
    for world in range(3, 18):
        groups = [rank % 2 for rank in range(world)]
        trees = [[1, -1, *[0] * (world - 2)]]
        cases += [(world, 0, groups), (world, 0, [], [*range(world)][::-1]), (world, 0, [], [], trees)]
    orders = {engine.algorithm_order(entry.collective, entry.name, *case) for case in cases}
    assert next(order for order in ("any", "kept", "at_once") if order in orders) == entry.order


@pytest.mark.parametrize("collective", reference.SUMS)
def test_every_collective_that_adds_can_keep_rank_order(collective):
    assert any(entry.keeps_rank_order for entry in schedules.algorithms(collective))


@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_is_right_on_numbers_too(collective, name):
    for world in range(1, 10):
        root = world // 2 if collective in ROOTED else 0
        plans = [schedules.schedule(collective, name, world, rank, root) for rank in range(world)]
        assert is_right(plans), f"world {world}"


@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_costs_what_the_formula_says(collective, name):
    rounds, sent = COST[collective, name]
    assert engine.algorithm_cost(collective, name, 1) == (0, 0, 0)
    for world in [*range(2, 65), 127, 128]:
        counted = engine.algorithm_cost(collective, name, world)
        assert counted[0] == rounds(world), f"rounds in world {world}"
        assert counted[1] == pytest.approx(sent(world), abs=1e-12), f"bytes in world {world}"


def test_halving_in_odd_worlds_stays_within_the_bound_it_states():
    worst = max(engine.algorithm_cost("all_gather", "recursive_doubling", n)[1] for n in range(2, 300))
    assert worst < 1.55


@pytest.mark.parametrize(
    "groups",
    [
        [0, 0, 0, 1],
        [0, 0, 1, 1, 1],
        [7, 3, 7, 3, 7, 3],  # neither in a row nor numbered from 0
        [0, 1, 2, 3, 4],
        [0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1, 2, 2, 2],
        [5] * 8 + [-1] * 7 + [2] * 3,
    ],
)
@pytest.mark.parametrize(
    ("collective", "name"), [pair for pair in CATALOGUE if pair[1] in ("two_level", "leaders")]
)
def test_any_groups_will_do(collective, name, groups):
    world = len(groups)
    assert engine.check_algorithm(collective, name, world, 0, groups) == ""
    plans = [schedules.schedule(collective, name, world, r, groups=groups) for r in range(world)]
    assert is_right(plans)


@pytest.mark.parametrize(
    ("collective", "sent"),
    [("all_reduce", both_halves), ("reduce_scatter", one_half), ("all_gather", one_half)],
)
def test_two_level_sends_little_out_of_the_groups(collective, sent):
    groups = [rank // 4 for rank in range(16)]
    plan = schedules.schedule(collective, "two_level", 16, 5, groups=groups)
    outside = sum(
        count
        for each in plan.rounds
        for send in each.sends
        for _, count in send.chunks
        for peer in send.peers
        if groups[peer] != groups[5]
    )
    assert outside / plan.chunks == sent(4) / 4


@given(st.permutations(range(7)), st.integers(0, 6))
@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_any_order_of_the_ranks_will_do(collective, name, order, root):
    root = root if collective in ROOTED else 0
    assert engine.check_algorithm(collective, name, 7, root, [], order) == ""


@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.randoms(use_true_random=False))
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_two_level_takes_any_groups_in_any_order(collective, groups, random):
    order = random.sample(range(len(groups)), len(groups))
    assert engine.check_algorithm(collective, "two_level", len(groups), 0, groups, order) == ""


def links_used(world, **place):
    """From which rank to which others a ring's messages go, as long as they carry sums."""
    plans = [schedules.schedule("reduce_scatter", "ring", world, rank, **place) for rank in range(world)]
    return [{peer for each in plan.rounds for send in each.sends for peer in send.peers} for plan in plans]


def test_a_ring_follows_the_order():
    assert links_used(5, order=[2, 0, 3, 1, 4]) == [{3}, {4}, {0}, {1}, {2}]


def test_a_ring_crosses_between_groups_once_each():
    """Two hosts, whose ranks take turns."""
    assert links_used(6, groups=[0, 1, 0, 1, 0, 1]) == [{2}, {3}, {4}, {5}, {1}, {0}]


def test_two_level_groups_form_a_ring_in_the_order():
    groups, order = [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 4, 5, 2, 3, 6, 7]
    plan = schedules.schedule("all_reduce", "two_level", 8, 2, groups=groups, order=order)
    peers = {peer for each in plan.rounds for send in each.sends for peer in send.peers}
    assert peers == {3, 4, 6}  # its host's other rank, and the first of the hosts beside it: 0, 2, 1, 3


def test_groups_may_be_more_than_the_catalogue_needs():
    assert schedules.schedule("all_reduce", "ring", 2, 0, groups=[0, 1]) == schedules.schedule(
        "all_reduce", "ring", 2, 0
    )
