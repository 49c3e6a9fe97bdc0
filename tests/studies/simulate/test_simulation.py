"""The simulator against times worked out by hand, bounds that no schedule can beat, and itself."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pydantic")

from ringreduce import schedules
from ringreduce._engine import simulation
from ringreduce.schedules import Recv, Round, Schedule, Send
from ringreduce.simulate import (
    Costs,
    FatTree,
    Flat,
    Graph,
    GraphLink,
    MessageCosts,
    Network,
    Sites,
    Torus,
    simulate,
)
from tests.conftest import slowly

RATE, LATENCY = 1e9, 2e-6
SIZE = 1 << 20
ALL_REDUCES = [entry.name for entry in schedules.algorithms("all_reduce")]
LONG = ["bidirectional_ring", "one_shot", "ring", "two_shot"]  # to simulate on thousands of ranks
COSTS = Costs(
    round_us=0.5,
    inside=[
        MessageCosts(
            up_to=65536, send_us=0.1, receive_us=0.2, send_rate=9e9, receive_rate=8e9, combine_rate=7e9
        ),
        MessageCosts(send_us=0.3, receive_us=0.4, receive_rate=5e9, combine_rate=4e9, latency_us=0.2),
    ],
    between=MessageCosts(send_us=2, receive_us=3, send_rate=3e9, receive_rate=6e9, combine_rate=2e9),
)


def flat(hosts, costs=Costs(), **more):  # noqa: B008
    return Network(topology=Flat(hosts=hosts, rate=RATE, latency_us=1e6 * LATENCY / 2), costs=costs, **more)


def whole(algorithm, nbytes, network, *arguments, **more):
    """In one slice."""
    return simulate(algorithm, nbytes, network, *arguments, slice_bytes=1 << 40, **more)


# --- by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3, 8, 13])
def test_a_ring_takes_a_chunk_and_a_latency_a_round(world):
    found = whole("ring", SIZE, flat(world))
    assert found.seconds == pytest.approx(2 * (world - 1) * (SIZE / world / RATE + LATENCY), rel=1e-12)
    assert found.made_of["latency"] == pytest.approx(2 * (world - 1) * LATENCY)
    assert found.rounds == 2 * (world - 1)


def test_what_a_message_costs():
    """One round: sent, copied out, carried, taken in, combined; each of the two halves of a buffer."""
    found = whole("one_shot", SIZE, flat(2, COSTS))
    (between,) = COSTS.between
    by_hand = {
        "round": COSTS.round_us * 1e-6,
        "send": between.send_us * 1e-6,
        "receive": between.receive_us * 1e-6,
        "change": 0.0,
        "copy_out": SIZE / between.send_rate,
        "copy_in": 0.0,
        "combine": SIZE / between.combine_rate,
        "transfer": SIZE / RATE,
        "latency": LATENCY,
        "delay": 0.0,
    }
    assert found.made_of == pytest.approx(by_hand)
    assert found.seconds == pytest.approx(sum(by_hand.values()))
    assert found.simulated == found.messages == 1


def test_a_chain_carries_slices_side_by_side():
    """Rank r gets slice s after r + s steps."""
    world, slices = 5, 16
    found = simulate("chain", SIZE, flat(world), "broadcast", slice_bytes=SIZE // slices, lanes=slices)
    assert found.slices == slices
    step = SIZE / slices / RATE
    assert found.seconds == pytest.approx((world - 1 + slices - 1) * step + (world - 1) * LATENCY, rel=1e-9)


def test_one_lane_waits_for_each_slice():
    one = simulate("chain", SIZE, flat(3), "broadcast", slice_bytes=SIZE // 4, lanes=1)
    # The root may begin the next slice at once, since its own part ends with the send.
    assert (
        one.seconds
        > simulate("chain", SIZE, flat(3), "broadcast", slice_bytes=SIZE // 4, lanes=4).seconds * 0.99
    )
    assert one.slices == 4


def test_ranks_beyond_the_cores_take_turns():
    inside = MessageCosts(send_rate=1e9, receive_rate=1e9, combine_rate=1e9)
    seconds = {}
    for cores in (1, 2, 4):
        topology = Flat(hosts=1, ranks_per_host=4, rate=RATE)
        network = Network(topology=topology, costs=Costs(cores=cores, inside=inside))
        seconds[cores] = whole("two_shot", SIZE, network).seconds
    assert seconds[1] == pytest.approx(4 * seconds[4], rel=0.01)
    assert seconds[2] == pytest.approx(2 * seconds[4], rel=0.01)


def test_each_change_of_the_rank_on_a_core_costs():
    """Rank 0 sends; rank 1 sends and takes in what has come; rank 0 does so: two changes."""
    topology = Flat(hosts=1, ranks_per_host=2, rate=RATE)
    costs = Costs(cores=1, switch_us=7, inside=MessageCosts(send_us=1, receive_us=2))
    found = whole("one_shot", 8, Network(topology=topology, costs=costs))
    assert found.seconds == pytest.approx((2 * 1 + 2 * 2 + 2 * 7) * 1e-6)


def test_costs_depend_on_the_size_of_messages():
    rows = [
        MessageCosts(up_to=1000, send_us=1),
        MessageCosts(up_to=2000, send_us=5),
        MessageCosts(send_us=25),
    ]
    seconds = [
        whole("one_shot", nbytes, flat(2, Costs(between=rows))).made_of["send"]
        for nbytes in (8, 1000, 1004, 2000, 2004, 1 << 20)
    ]
    assert seconds == pytest.approx([1e-6, 1e-6, 5e-6, 5e-6, 25e-6, 25e-6])


def test_a_late_rank_delays_all_by_as_much():
    plain = whole("ring", SIZE, flat(4)).seconds
    late = whole("ring", SIZE, flat(4, late_us={2: 500.0}))
    assert late.seconds == pytest.approx(plain + 500e-6)
    assert late.made_of["delay"] == pytest.approx(500e-6)
    assert late.simulated == 4


def test_a_slow_rank_is_what_the_others_wait_for():
    slow = whole("ring", SIZE, flat(4, COSTS, slow={1: 50.0}))
    assert slow.seconds > 5 * whole("ring", SIZE, flat(4, COSTS)).seconds
    assert "rank 1" in slow.bottleneck


def test_jitter_is_repeated_by_its_seed():
    network = flat(8, jitter_us=10.0)
    times = [whole("ring", SIZE, network, seed=seed).seconds for seed in (1, 1, 2, 3)]
    assert times[0] == times[1] != times[2] != times[3]
    assert min(times) > whole("ring", SIZE, flat(8)).seconds


# --- networks ----------------------------------------------------------------------------------------------


def test_an_oversubscribed_tree_is_as_slow_as_its_uplinks():
    """Each leaf's hosts send all they have to the other leaf: halving's first round."""
    seconds = []
    for oversubscription in (1, 4):
        topology = FatTree(
            hosts=8, hosts_per_leaf=4, rate=RATE, latency_us=0, oversubscription=oversubscription
        )
        found = whole("recursive_doubling", SIZE, Network(topology=topology))
        seconds.append(found.seconds)
    # Of three rounds two stay in the leaf.
    assert seconds == pytest.approx([3 * SIZE / RATE, (2 + 4) * SIZE / RATE])
    assert "spine" in found.bottleneck


def test_a_trunk_is_what_two_sites_share():
    topology = Sites(hosts=[2, 2], rate=RATE, trunk=RATE / 10, trunk_latency_us=0, latency_us=0)
    found = whole("ring", SIZE, Network(topology=topology))
    assert found.seconds == pytest.approx(6 * SIZE / 4 / (RATE / 10), rel=0.2)
    assert "backbone" in found.bottleneck and found.busy["site0 > backbone"] > 0.8


def test_a_slow_host_slows_the_ring():
    topology = Flat(hosts=4, rate=[RATE, RATE, RATE / 4, RATE], latency_us=0)
    assert whole("ring", SIZE, Network(topology=topology)).seconds == pytest.approx(
        6 * SIZE / 4 / (RATE / 4), rel=0.2
    )


@pytest.mark.parametrize("dims", [[4], [2, 3], [3, 3, 3], [4, 2, 2]])
def test_neighbours_of_a_torus_have_a_link_of_their_own(dims):
    def to_all_neighbours(world, rank):
        """Every rank sends its buffer one step along the last dimension."""
        length = dims[-1]
        first = rank // length * length
        after, before = first + (rank + 1) % length, first + (rank - 1) % length
        return Schedule("all_to_all", world, rank, world, [Round([Send([0], [after])], [Recv([0], before)])])

    built, _ = Network(topology=Torus(dims=dims, rate=RATE, latency_us=2)).build()
    world = math.prod(dims)
    found = simulation.simulate(
        **built, bytes=SIZE, seed=0, intervals=0, slice_bytes=0, lanes=1, most_messages=1, root=0, order=[],
        groups=[], collective="", algorithm="", schedule_of=lambda rank: to_all_neighbours(world, rank),
    )  # fmt: skip
    assert found["seconds"] == pytest.approx(SIZE / world / RATE + 2e-6)


def test_messages_go_round_a_failed_link():
    topology = Torus(dims=[6], rate=RATE, latency_us=1)
    plain = whole("ring", SIZE, Network(topology=topology)).seconds
    broken = whole("ring", SIZE, Network(topology=topology, failed=[("host0", "host1")]))
    assert broken.seconds > plain
    # What went over that link takes five others, which carry their own messages too.
    assert broken.made_of["latency"] > 10 * 1e-6


def test_a_graph_is_taken_as_it_is():
    links = [GraphLink(between=("a", "s")), GraphLink(between=("s", "b"), rate=RATE / 2, latency_us=7)]
    topology = Graph(hosts=["a", "b"], switches=["s"], links=links, rate=RATE, latency_us=1)
    found = whole("one_shot", SIZE, Network(topology=topology))
    assert found.seconds == pytest.approx(SIZE / (RATE / 2) + 8e-6)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: Network(topology=Torus(dims=[2, 1], rate=1), failed=[("host0", "host1")]), "not connected.*'host1'"),
        (lambda: Network(topology=Torus(dims=[3], rate=1), failed=[("host0", "hast")]), "no link joins 'host0'"),
        (lambda: Network(topology=Graph(hosts=["a", "a"], links=[], rate=1)), "two nodes are called 'a'"),
        (lambda: Network(topology=Graph(hosts=["a", "b"], links=[], rate=1)), "there is no path from 'a' to 'b'"),
        (lambda: Network(topology=FatTree(hosts=5, hosts_per_leaf=2, rate=1)), "must be a multiple of hosts_per_leaf"),
        (lambda: Network(topology=Flat(hosts=3, rate=[1, 2])), "2 values for 3 hosts"),
        (lambda: flat(4, late_us={4: 1.0}), "late_us: there is no rank 4"),
        (lambda: flat(4).for_world(0), "world must be"),
        (lambda: Network(topology=Torus(dims=[3], rate=1)).for_world(9), "fixed number of ranks"),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_are_refused(network, message):
    with pytest.raises(ValueError, match=message):
        network().build()


# --- every algorithm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", schedules.algorithms(), ids=lambda entry: f"{entry.collective}-{entry.name}"
)
@pytest.mark.parametrize("world", [1, 2, 6, 8, 12])
def test_times_are_what_they_are_made_of_and_no_less_than_bytes_take(entry, world):
    size = 0 if entry.collective == "barrier" else SIZE
    found = whole(entry.name, size, flat(world, COSTS), entry.collective)
    assert found.seconds == pytest.approx(sum(found.made_of.values()))
    assert min(found.made_of.values()) >= 0
    counted = schedules.algorithms(entry.collective, world)
    sent = next(row.measured_bytes for row in counted if row.name == entry.name)
    assert found.seconds >= sent * size / RATE
    assert max(found.busy.values(), default=0.0) <= 1 + 1e-9
    assert max(found.busy_cores, default=0.0) <= 1 + 1e-9


TOPOLOGIES = {
    "flat": Flat(hosts=8, rate=RATE),
    "hosts of several": Flat(hosts=4, ranks_per_host=2, rate=RATE),
    "fat tree": FatTree(hosts=8, hosts_per_leaf=2, rate=RATE, oversubscription=3),
    "fat tree, several": FatTree(hosts=6, hosts_per_leaf=2, ranks_per_host=2, rate=RATE),
    "torus": Torus(dims=[3, 4], rate=RATE),
    "ring": Torus(dims=[5], rate=RATE, ranks_per_host=2),
}


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize("slice_bytes", [1 << 40, 1 << 17])
def test_ranks_that_do_the_same_are_simulated_once_with_the_same_result(topology, slice_bytes):
    """Turning is a shortcut: without it, all ranks are simulated."""
    network = Network(topology=topology, costs=COSTS)
    world = len(network.build()[0]["node_of"])
    shortened = 0
    for entry in schedules.algorithms("all_reduce"):
        short = simulate(entry.name, SIZE, network, slice_bytes=slice_bytes)
        # A rank that is late by nothing switches the shortcut off.
        all_of_them = simulate(
            entry.name, SIZE, network.model_copy(update={"late_us": {0: 0.0}}), slice_bytes=slice_bytes
        )
        assert all_of_them.simulated == world
        assert short.seconds == pytest.approx(all_of_them.seconds, rel=1e-9), entry.name
        assert short.messages * world == all_of_them.messages * short.simulated
        shortened += short.simulated < world
    assert shortened >= 4


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "two_shot", "swing", "double_tree"])
def test_slices_that_are_not_simulated_are_like_those_that_are(name):
    network = flat(8, COSTS)
    asked = {"slice_bytes": 1 << 15, "lanes": 4}
    exact = simulate(name, 16 << 20, network, **asked)
    guessed = simulate(name, 16 << 20, network, **asked, most_messages=exact.messages // 4)
    assert guessed.simulated_slices < guessed.slices == exact.slices == exact.simulated_slices
    assert guessed.seconds == pytest.approx(exact.seconds, rel=0.06)
    assert guessed.messages == pytest.approx(exact.messages, rel=0.01)


@pytest.mark.parametrize("name", ["one_shot", "two_shot"])
def test_of_long_slices_one_stands_for_all(name):
    """Where each slice is more messages than there should be in all."""
    asked = {"slice_bytes": 1 << 15, "lanes": 4}
    exact = simulate(name, 16 << 20, flat(16, COSTS), **asked)
    guessed = simulate(name, 16 << 20, flat(16, COSTS), **asked, most_messages=1)
    assert guessed.simulated_slices == 1 < exact.slices
    assert guessed.seconds == pytest.approx(exact.seconds, rel=0.1)


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("more", [{"late_us": {3: 100.0}}, {"slow": {7: 3.0}}, {"jitter_us": 2.0}], ids=str)
def test_rounds_that_are_left_out_are_like_those_that_are_not(name, more):
    network = flat(100, COSTS, **more)
    exact = whole(name, 16 << 20, network)
    guessed = whole(name, 16 << 20, network, most_messages=exact.messages // 2)
    assert guessed.seconds != exact.seconds
    assert guessed.seconds == pytest.approx(exact.seconds, rel=0.03)
    assert sum(guessed.made_of.values()) == pytest.approx(guessed.seconds, rel=1e-4)
    assert (guessed.messages, guessed.rounds) == (exact.messages, exact.rounds)


def test_slices_are_longer_where_links_are_far():
    """As of a communicator that has measured its links."""
    near, far = (
        simulate("two_shot", 4 << 20, Network(topology=Flat(hosts=4, rate=120e6, latency_us=latency_us)))
        for latency_us in (20, 2500)
    )
    assert far.slices < near.slices
    assert far.seconds == pytest.approx(1.5 * (4 << 20) / 120e6 + 2 * 5e-3, rel=0.3)


def test_every_other_rank_is_enough_where_schedules_differ_from_one_rank_to_the_next():
    assert simulate("swing", SIZE, flat(64)).simulated == 2
    assert simulate("recursive_doubling", SIZE, flat(64)).simulated == 32


def test_a_round_without_anything_to_do_costs_nothing():
    def with_empty_rounds(world, rank):
        (real,) = exchange(world, rank).rounds
        return Schedule("all_reduce", world, rank, 1, [Round(), real, Round(), Round()])

    found = whole(with_empty_rounds, SIZE, flat(2, COSTS), intervals=1)
    assert found.seconds == whole(exchange, SIZE, flat(2, COSTS)).seconds
    assert found.rounds == 2 and found.intervals[0].round == 1


@pytest.mark.parametrize("name", [*sorted({*ALL_REDUCES} - {*LONG}), *slowly(*LONG)])
def test_4096_ranks_are_simulated(name):
    topology = FatTree(hosts=512, hosts_per_leaf=64, ranks_per_host=8, rate="100 Gbit/s", oversubscription=2)
    found = whole(name, 1 << 20, Network(topology=topology, costs=COSTS))
    assert found.world == 4096 and found.seconds > 0
    heavy = schedules.schedule("all_reduce", name, 4096, 1).cost()[1]
    assert found.seconds >= heavy * (1 << 20) / 8 / 12.5e9


# --- one's own ---------------------------------------------------------------------------------------------


def exchange(world, rank):
    """Pairs exchange all they have: an all-reduce of two ranks."""
    return Schedule(
        "all_reduce", world, rank, 1, [Round([Send([0], [1 - rank])], [Recv([0], 1 - rank, reduce=True)])]
    )


def test_functions_and_registered_algorithms_are_simulated():
    by_function = whole(exchange, SIZE, flat(2))
    assert by_function.seconds == whole("one_shot", SIZE, flat(2)).seconds
    assert by_function.algorithm == "exchange"
    schedules.register("pairs for the simulator", exchange)
    assert whole("pairs for the simulator", SIZE, flat(2)).seconds == by_function.seconds


def test_a_wrong_algorithm_is_refused():
    with pytest.raises(schedules.ScheduleError, match="rank"):
        whole(lambda world, rank: Schedule("all_reduce", world, rank, 1), SIZE, flat(2))
    with pytest.raises(ValueError, match="no all_reduce algorithm is called 'rng'"):
        whole("rng", SIZE, flat(2))


def test_auto_is_what_auto_picks():
    assert simulate("auto", 8, flat(8)).algorithm == "recursive_doubling"
    assert simulate("auto", 64 << 20, flat(8)).algorithm == "ring"
