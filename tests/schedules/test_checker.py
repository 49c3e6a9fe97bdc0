"""What the checker says about schedules that are wrong, one rule at a time."""

import pytest

from ringreduce._engine import schedules as engine
from ringreduce.schedules import Local, Recv, Round, Schedule, ScheduleError, Send, check


def all_reduce(*rounds_by_rank, chunks=1, scratch=0):
    world = len(rounds_by_rank)
    return [
        Schedule("all_reduce", world, rank, chunks, list(rounds), scratch=scratch)
        for rank, rounds in enumerate(rounds_by_rank)
    ]


def swap_with(peer, chunks=(0,)):
    return Round([Send(list(chunks), [peer])], [Recv(list(chunks), peer, reduce=True)])


def told(plans):
    with pytest.raises(ScheduleError) as error:
        check(plans)
    return str(error.value)


def test_two_ranks_that_swap_are_right():
    check(all_reduce([swap_with(1)], [swap_with(0)]))


def test_no_schedules():
    assert told([]) == "there are no schedules to check"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"world": 3}, "rank 1 has a schedule for a world of 3, not 2"),
        ({"rank": 0}, "the schedule at position 1 belongs to rank 0"),
        ({"collective": "reduce"}, "rank 1 has a schedule for reduce, but rank 0 has one for all_reduce"),
        ({"root": 2}, "rank 1 has root 2 in a world of 2 ranks"),
        ({"root": 1}, "rank 1 has root 1, but rank 0 has root 0"),
        ({"chunks": 2}, "rank 1 has 2 chunks, but rank 0 has 1"),
        ({"scratch": -1}, "rank 1 has -1 scratch chunks"),
    ],
)
def test_heads_that_do_not_fit(change, sentence):
    plans = all_reduce([swap_with(1)], [swap_with(0)])
    for name, value in change.items():
        setattr(plans[1], name, value)
    assert told(plans) == sentence


@pytest.mark.parametrize(
    ("collective", "chunks", "sentence"),
    [
        ("all_reduce", 0, "all_reduce cannot have 0 + 0 chunks"),
        ("barrier", 1, "barrier cannot have 1 + 0 chunks"),
        ("all_gather", 3, "all_gather needs a chunk per rank, 2, not 3"),
    ],
)
def test_numbers_of_chunks(collective, chunks, sentence):
    assert told([Schedule(collective, 2, rank, chunks) for rank in range(2)]) == sentence


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (Round([Send([1], [1])]), "rank 0, round 0: sends chunks 1 to 1, but has only 1"),
        (Round([Send([(0, 2)], [1])]), "rank 0, round 0: sends chunks 0 to 1, but has only 1"),
        (Round([Send([(0, 0)], [1])]), "rank 0, round 0: sends a run of 0 chunks"),
        (Round([Send([(2**31 - 1, 2**31 - 1)], [1])]), None),
        (Round([Send([], [1])]), "rank 0, round 0: sends a message without chunks"),
        (Round([Send([0], [])]), "rank 0, round 0: sends to no peer"),
        (Round([Send([0], [2])]), "rank 0, round 0: sends to rank 2 in a world of 2 ranks"),
        (Round([Send([0], [0])]), "rank 0, round 0: sends to itself"),
        (Round([Send([0], [1]), Send([0], [1])]), "rank 0, round 0: sends to rank 1 twice"),
        (Round([], [Recv([0], 1), Recv([0], 1)]), "rank 0, round 0: receives from rank 1 twice"),
        (Round([], [Recv([0], -1)]), "rank 0, round 0: receives from rank -1 in a world of 2 ranks"),
        (Round([], [Recv([0, 0], 1)]), "rank 0, round 0: writes chunk 0 twice"),
        (Round([], [Recv([0, 0], 1, True)]), "rank 0, round 0: names chunk 0 twice in a message"),
        (Round([], [Recv([0], 1)], [Local(0, 0)]), "rank 0, round 0: writes chunk 0 twice"),
        (Round([], [], [Local(0, 0)]), "rank 0, round 0: copies from chunk 0 while copying to it"),
        (
            Round([], [], [Local((0, 1), (0, 2))]),
            "rank 0, round 0: copies from chunks 0 to 1, but has only 1",
        ),
    ],
)
def test_rounds_that_break_a_rule(bad, sentence):
    said = told(all_reduce([bad], [swap_with(0)]))
    assert sentence is None or said == sentence


def test_peers_have_an_order():
    plans = all_reduce([Round([Send([0], [2, 1])])], [], [])
    assert told(plans) == "rank 0, round 0: sends to peers that are not in ascending order"


def test_sums_that_overlap_in_part():
    overlap = Round([], [Recv([0, 1], 1, True), Recv([1, 2], 2, True)])
    said = told(all_reduce([overlap], [], [], chunks=3))
    assert said == (
        "rank 0, round 0: reduces messages from ranks 1 and 2 into chunk 1, but they do not cover the same chunks"
    )


def test_copy_of_another_length():
    plans = all_reduce([Round([], [], [Local((0, 1), (1, 2))])], [], chunks=3)
    assert told(plans) == "rank 0, round 0: copies 2 chunks to a run of 1"


def test_message_that_nobody_takes():
    plans = all_reduce([swap_with(1), Round([Send([0], [1])])], [swap_with(0)])
    assert told(plans) == "rank 0, round 1: waits forever to send to rank 1, which has finished"


def test_ranks_that_wait_in_a_circle():
    """Each wants to send before it receives; a buffer would hide it, a rendezvous does not."""
    first = [Round([Send([0], [1])]), Round([], [Recv([0], 1, True)])]
    second = [Round([Send([0], [0])]), Round([], [Recv([0], 0, True)])]
    assert told(all_reduce(first, second)) == (
        "rank 0, round 0: waits forever to send to rank 1, which is in round 0"
    )


def test_message_of_another_length():
    plans = all_reduce([swap_with(1, [0, 1])], [swap_with(0, [0])], chunks=2)
    assert told(plans) == "rank 0, round 0: expects 2 chunks from rank 1, which sends 1 in its round 0"


def test_contribution_that_is_missing():
    pairs = [[swap_with(1)], [swap_with(0)], [swap_with(3)], [swap_with(2)]]
    assert told(all_reduce(*pairs)) == "rank 0, chunk 0: at the end it lacks the contribution of rank 2"


def test_contribution_that_comes_twice():
    plans = all_reduce([swap_with(1)] * 2, [swap_with(0)] * 2)
    assert told(plans) == "rank 0, chunk 0: at the end it holds the contribution of rank 1 more than once"


def test_another_chunk():
    send_0 = Round([Send([0], [1])], [Recv([0], 1, True)])
    send_1 = Round([Send([1], [0])], [Recv([0], 0, True)])
    assert "chunk 0: at the end it holds chunk 1 of rank 1" in told(all_reduce([send_0], [send_1], chunks=2))


def test_sums_in_another_order():
    """(0 + 1) + 2 on rank 0 and (1 + 2) + 0 on the others: equal numbers, but perhaps not equal bits."""

    def adds_then(rank, first, second):
        others = [r for r in range(3) if r != rank]
        swap = Round([Send([0], others)], [Recv([0], first, True), Recv([1], second)])
        return [swap, Round([], [], [Local(0, 1, True)])]

    said = told(all_reduce(adds_then(0, 1, 2), adds_then(1, 2, 0), adds_then(2, 1, 0), scratch=1))
    assert said == "rank 1, chunk 0: adds or rounds in another order than rank 0, so their bits may differ"


def test_sums_rounded_in_between():
    """(0 + 1) + 2 everywhere; but ranks 0 and 1 round 0 + 1 first, which shows in 16- and 8-bit floats."""

    def in_two(rank):
        swap = Round([Send([0], [1 - rank, 2])], [Recv([0], 1 - rank, True), Recv([1], 2)])
        return [swap, Round([], [], [Local(0, 1, True)])]

    at_once = [Round([Send([0], [0, 1])], [Recv([0], 0, True), Recv([0], 1, True)])]
    said = told(all_reduce(in_two(0), in_two(1), at_once, scratch=1))
    assert said == "rank 2, chunk 0: adds or rounds in another order than rank 0, so their bits may differ"


def test_rank_order():
    def one_shot(rank):
        others = [r for r in range(3) if r != rank]
        return [Round([Send([0], others)], [Recv([0], r, True) for r in others])]

    assert engine.order_of(all_reduce(*map(one_shot, range(3)))) == "at_once"
    assert engine.order_of([Schedule("all_reduce", 1, 0, 1)]) == "at_once"
    # 0 + (1 + 2), and (0 + 1) + 2 with a rounding in between, on all ranks that hold a result.
    for order in ([1, 2, 0], [0, 1, 2]):
        plans = [Schedule("reduce", 3, rank, 1, root=order[0], scratch=1) for rank in range(3)]
        for rank in order[1:]:
            plans[rank].rounds = [Round([Send([0], [order[0]])])]
            plans[order[0]].rounds.append(Round([], [Recv([0], rank, True)]))
        check(plans)
        assert engine.order_of(plans) == "kept"
    # What is refused, and what does not add.
    assert engine.order_of(all_reduce([], [], [])) == "any"
    assert engine.order_of([Schedule("broadcast", 1, 0, 1)]) == "any"


def scans(*rounds, collective="scan"):
    return [Schedule(collective, len(rounds), rank, 1, own) for rank, own in enumerate(rounds)]


def test_scan():
    def chained(rank):
        return [
            Round([], [Recv([0], rank - 1, True)] if rank else []),
            Round([Send([0], [rank + 1])] if rank < 2 else []),
        ]

    check(scans(*map(chained, range(3))))
    assert engine.order_of(scans(*map(chained, range(3)))) == "kept"
    assert told(scans([Round([Send([0], [1])])], [Round([], [Recv([0], 0, True)])], [])) == (
        "rank 2, chunk 0: at the end it lacks the contribution of rank 0"
    )
    swap = [[Round([Send([0], [1 - r])], [Recv([0], 1 - r, True)])] for r in range(2)]
    assert told(scans(*swap)) == (
        "rank 0, chunk 0: at the end it holds the contribution of rank 1, a later one"
    )
    # One value too many, and rank 0's own, which nobody asks for.
    assert told(scans(*swap, collective="exscan")) == (
        "rank 1, chunk 0: at the end it holds the contribution of rank 1, a later one"
    )
    moved = [[Round([Send([0], [1])])], [Round([], [Recv([0], 0)])]]
    check(scans(*moved, collective="exscan"))
    assert "rank 1, chunk 0: at the end it lacks the contribution of rank 1" in told(scans(*moved))


def test_operators_that_do_not_commute():
    """A sum of the right values in the wrong order is right, but not kept."""
    plans = [Schedule("reduce", 3, rank, 1, root=1) for rank in range(3)]
    plans[0].rounds = [Round([Send([0], [2])])]  # 2 then adds 0 before its own: (0 + 2), and 1 comes between
    plans[2].rounds = [Round([], [Recv([0], 0, True)]), Round([Send([0], [1])])]
    plans[1].rounds = [Round([], [Recv([0], 2, True)])]
    check(plans)
    assert engine.order_of(plans) == "any"


def test_chunk_that_holds_nothing():
    empty = "which holds nothing"
    sent = all_reduce([Round([Send([1], [1])])], [Round([], [Recv([0], 0)])], scratch=1)
    assert told(sent) == f"rank 0, round 0: sends chunk 1, {empty}"
    copied = all_reduce([Round([], [], [Local(0, 1)])], [], scratch=1)
    assert told(copied) == f"rank 0, round 0: copies chunk 1, {empty}"
    summed = all_reduce([Round([Send([0], [1])])], [Round([], [Recv([1], 0, True)])], scratch=1)
    assert told(summed) == f"rank 1, round 0: reduces into chunk 1, {empty}"


def test_average_that_would_not_be_divided():
    """The sums are right, but come into place by a copy, and the engine divides where it adds."""
    rounds = [
        [
            Round([Send([0], [peer])], [Recv([1], peer)]),
            Round([], [], [Local(1, 0, True)]),
            Round([], [], [Local(0, 1)]),
        ]
        for peer in (1, 0)
    ]
    assert told(all_reduce(*rounds, scratch=1)) == (
        "rank 0, chunk 0: at the end it is complete before its last write, "
        "so an average would not be divided, or not on all ranks"
    )


def test_average_that_would_be_divided_too_early():
    """Rank 1 adds its last, and passes on to rank 0, which adds more."""
    plans = all_reduce(
        [Round([], [Recv([0], 1, True)]), Round([Send([0], [1, 2])])],
        [Round([], [Recv([0], 2, True)]), Round([Send([0], [0])]), Round([], [Recv([1], 0)])],
        [Round([Send([0], [1])]), Round([], [Recv([0], 0)])],
        scratch=1,
    )
    assert told(plans) == "rank 0, chunk 0: at the end it holds a sum that an average would divide too early"


def test_moved_data_that_is_not_what_it_should_be():
    plans = [Schedule("broadcast", 2, 0, 2), Schedule("broadcast", 2, 1, 2)]
    assert told(plans) == "rank 1 must end with chunk 0 of rank 0 in chunk 0, but ends with something else"
    plans[0].rounds = [Round([Send([1, 0], [1])])]
    plans[1].rounds = [Round([], [Recv([0, 1], 0)])]
    assert told(plans) == "rank 1 must end with chunk 0 of rank 0 in chunk 0, but ends with something else"
    plans = [Schedule("all_to_all", 2, rank, 2) for rank in range(2)]
    assert told(plans) == "rank 0 must end with chunk 0 of rank 1 in chunk 1, but ends with something else"


def test_barrier_that_does_not_wait_for_all():
    plans = [
        Schedule("barrier", 3, r, 0, [Round([Send([], [(r + 1) % 3])], [Recv([], (r - 1) % 3)])])
        for r in range(3)
    ]
    assert told(plans) == "rank 0 finishes without having heard from rank 1"


def test_barrier_that_reduces():
    plans = [
        Schedule("barrier", 2, r, 0, [Round([Send([], [1 - r])], [Recv([], 1 - r, True)])]) for r in (0, 1)
    ]
    assert told(plans) == "rank 0, round 0: reduces a message without chunks"


def test_chunks_of_other_lengths_do_not_mix() -> None:
    """Two chunks of three elements have lengths 2 and 1: one must not be moved into the other's place."""
    swap = Round(locals=[Local((2, 1), (1, 1))])
    wrong = Schedule("all_reduce", 1, 0, chunks=2, scratch=1, rounds=[swap])
    with pytest.raises(ScheduleError, match="copies chunk 1 to chunk 2, which may have another length"):
        check([wrong])
    right = Schedule("all_reduce", 1, 0, chunks=2, scratch=2, rounds=[Round(locals=[Local((3, 1), (1, 1))])])
    check([right])
