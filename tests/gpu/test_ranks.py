"""The kernels that are one rank's part of a collective, flagged.h and direct.h: all ranks' at once."""

import itertools
import time

import ml_dtypes
import numpy as np
import pytest

from tests.conftest import slowly

from .ranks import MOST_ARENAS, Part, wait_until

WORLDS = [1, 2, 3, *slowly(4), 8, *slowly(16)]
COUNTS = [1, 7, 1000, 20_011]
KERNELS = ["one_shot", "two_shot", "direct"]
COMBINATIONS = [
    (dtype, op)
    for dtype in ("float32", ml_dtypes.bfloat16, "int32", "complex64")
    for op in ("sum", "avg", "min")
    if (dtype, op) != ("complex64", "min")
]

every_world = pytest.mark.parametrize("world", WORLDS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def arrays(world, count, dtype="float32", seed=1):
    """Multiples of the number of ranks, so that averages are exact, too."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(-4, 5, count) * world for _ in range(world)]
    if dtype == "complex64":
        return [(x + 1j * rng.integers(-4, 5, count) * world).astype(dtype) for x in made]
    return [x.astype(dtype) for x in made]


def combined(given, op):
    """In a type where it is exact."""
    exact = [x if x.dtype.kind in "ic" else x.astype("float64") for x in given]
    if op == "min":
        return np.minimum.reduce(exact).astype(given[0].dtype)
    total = sum(exact)
    if op == "avg":
        total = total // len(given) if total.dtype.kind == "i" else total / len(given)
    return total.astype(given[0].dtype)


def parts(kernel, world, count, itemsize):
    """What each rank is given in an all-reduce: its share if it is direct, or all."""
    if kernel != "direct":
        return [Part()] * world
    cuts = [count * rank // world * itemsize for rank in range(world + 1)]
    return [Part(begin, begin, end - begin) for begin, end in itertools.pairwise(cuts)]


def errands(ranks, op, given, results, of, **how):
    return [ranks.errand(r, op, given[r], results[r], of[r], **how) for r in range(ranks.world)]


def results_of(ranks, kernel, op, given, in_place=False, shifts=(0, 0)):
    """Of an all-reduce."""
    inputs = ranks.spans(given, shifts[0])
    outputs = inputs if in_place else ranks.spans([np.zeros_like(x) for x in given], shifts[1])
    of = parts(kernel, ranks.world, given[0].size, given[0].itemsize)
    ranks.launch(kernel, errands(ranks, op, inputs, outputs, of))
    ranks.finish()
    results = [x.get() for x in outputs]
    if not in_place:
        for span, x in zip(inputs, given, strict=True):
            assert (span.get() == x).all()
    for span in inputs if in_place else inputs + outputs:
        span.close()
    return results


@every_kernel
@every_world
@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_all_reduce(make_ranks, kernel, world, dtype, op):
    ranks = make_ranks(world)
    for number, count in enumerate(COUNTS):
        given = arrays(world, count, dtype, number)
        wanted = combined(given, op)
        for result in results_of(ranks, kernel, op, given, in_place=number % 2 == 1):
            assert (result == wanted).all(), count


@every_kernel
@pytest.mark.parametrize("world", [1, 3, *slowly(4)])
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "shifts", [(4, 4), (4, 8), (2, 6), (1, 1), (3, 0), (lambda rank: 4 * rank, lambda rank: rank)]
)
def test_misaligned(make_ranks, kernel, world, dtype, in_place, shifts):
    ranks = make_ranks(world)
    for count in COUNTS:
        given = arrays(world, count, dtype)
        for result in results_of(ranks, kernel, "sum", given, in_place, shifts):
            assert (result == combined(given, "sum")).all(), count


@every_kernel
@every_world
@pytest.mark.parametrize("blocks", [1, 2])
def test_call_after_call(make_ranks, kernel, world, blocks):
    """In place, each takes up what the one before has left; the host does not wait in between."""
    ranks = make_ranks(world, blocks=blocks)
    calls = 5
    given = [np.full(3001, rank % 2 + 1, "int32") for rank in range(world)]
    spans = ranks.spans(given)
    launched = errands(ranks, "sum", spans, spans, parts(kernel, world, 3001, 4))
    for _ in range(calls):
        ranks.launch(kernel, launched)
    ranks.finish()
    for span, rank in zip(spans, ranks.ranks, strict=True):
        assert (span.get() == combined(given, "sum") * world ** (calls - 1)).all()
        assert (rank.report.contents.begun, rank.done()) == (calls, calls)
        span.close()


def test_direct_takes_more_blocks_than_have_arenas(make_ranks, monkeypatch):
    """The others of a one-shot only count the call, so that every block has ended as many."""
    monkeypatch.setenv("RINGREDUCE_EMULATED_BLOCKS", "128")
    ranks = make_ranks(2, blocks=MOST_ARENAS + 8)
    for number, kernel in enumerate([*KERNELS, *KERNELS]):
        given = arrays(2, 50_000, seed=number)
        for result in results_of(ranks, kernel, "sum", given):
            assert (result == combined(given, "sum")).all()
        assert [rank.done() for rank in ranks.ranks] == [number + 1] * 2


@pytest.mark.parametrize("world", [2, 5])
def test_kernels_take_turns(make_ranks, world):
    """On the same boxes, calls of all lengths, an empty one among them."""
    ranks = make_ranks(world)
    rng = np.random.default_rng(7)
    for number, count in enumerate([0, *rng.integers(1, 4000, 40)]):
        given = arrays(world, int(count), "float32", number)
        for result in results_of(ranks, KERNELS[rng.integers(3)], "sum", given):
            assert (result == combined(given, "sum")).all()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kernel", ["one_shot", "two_shot"])
def test_flags_come_again(make_ranks, kernel, world):
    """They are numbers of phases in 32 bits, and never 0."""
    ranks = make_ranks(world)
    for rank in ranks.ranks:
        for block in range(ranks.boxes.blocks):
            rank.memory.put(np.array([(1 << 32) - 5], np.uint64), ranks.boxes.phases(block))
    for number in range(4):
        given = arrays(world, 5000, "float32", number)
        for result in results_of(ranks, kernel, "sum", given):
            assert (result == combined(given, "sum")).all()


@every_kernel
@pytest.mark.parametrize("world", [2, 4, 16])
def test_captured_and_replayed(make_ranks, kernel, world):
    ranks = make_ranks(world)
    given = arrays(world, 5000, "int32")
    spans = ranks.spans(given)
    launched = errands(ranks, "sum", spans, spans, parts(kernel, world, 5000, 4))
    graphs = []
    for rank, errand in zip(ranks.ranks, launched, strict=True):
        rank.choose()
        with ranks.library.captured(rank.stream) as graph:
            ranks.launch(kernel, [errand])
        graphs.append(graph)
    assert all((span.get() == x).all() for span, x in zip(spans, given, strict=True))  # nothing has run yet
    wanted = combined(given, "sum")
    for _ in range(3):
        for rank, graph in zip(ranks.ranks, graphs, strict=True):
            rank.choose()
            graph.launch(rank.stream)
        ranks.finish()
        for span in spans:
            assert (span.get() == wanted).all()
        wanted = wanted * world
    for graph in graphs:
        graph.close()
    for span in spans:
        span.close()


@every_world
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_reduce_scatter(make_ranks, world, dtype):
    """Each rank combines its block of all inputs into its own output."""
    ranks = make_ranks(world)
    for count in (1, 7, 5003):
        given = arrays(world, count * world, dtype)
        inputs = ranks.spans(given)
        outputs = ranks.spans([np.zeros(count, dtype) for _ in given], lambda rank: 2 * rank)
        size = outputs[0].size
        of = [Part(source=rank * size, bytes=size, to_all=False) for rank in range(world)]
        ranks.launch("direct", errands(ranks, "avg", inputs, outputs, of))
        ranks.finish()
        for rank, span in enumerate(outputs):
            assert (span.get() == combined(given, "avg")[rank * count :][:count]).all()
        for span in inputs + outputs:
            span.close()


@every_world
@pytest.mark.parametrize("in_place", [False, True])
def test_all_gather(make_ranks, world, in_place):
    """Each rank writes its block to all outputs."""
    ranks = make_ranks(world)
    for count in (1, 7, 5003):
        given = arrays(world, count, "uint8")
        results = [np.zeros(count * world, "uint8") for _ in given]
        for rank, result in enumerate(results):
            if in_place:
                result[rank * count :][:count] = given[rank]
        outputs = ranks.spans(results)
        inputs = outputs if in_place else ranks.spans(given, 3)
        of = [
            Part(rank * count if in_place else 0, rank * count, count, from_all=False)
            for rank in range(world)
        ]
        ranks.launch("direct", errands(ranks, "sum", inputs, outputs, of))
        ranks.finish()
        for span in outputs:
            assert (span.get() == np.concatenate(given)).all()
        for span in outputs if in_place else inputs + outputs:
            span.close()


FLAGGED = {  # what ranks give and get, and where: from_, to, source, target, steps, copies
    "reduce_scatter": lambda r, n, b: (range(n), range(n), 0, r * b, b, 0, False),
    "reduce": lambda r, n, b: (range(n), [n - 1], 0, 0, 0, 0, False),
    "all_gather": lambda r, n, b: (range(n), range(n), r * b, 0, 0, b, True),
    "gather": lambda r, n, b: (range(n), [n - 1], r * b, 0, 0, b, True),
    "scatter": lambda r, n, b: ([n - 1], range(n), 0, r * b, b, 0, True),
    "broadcast": lambda r, n, b: ([n - 1], range(n), 0, 0, 0, 0, True),
    "all_to_all": lambda r, n, b: (range(n), range(n), 0, 0, b, b, True),
}


def flagged(ranks, collective, spans, size):
    """Errands in place, for blocks of `size` bytes."""
    launched = [ranks.errand(r, "sum", spans[r], spans[r]) for r in range(ranks.world)]
    for rank, errand in enumerate(launched):
        share, part = errand.share, FLAGGED[collective](rank, ranks.world, size)
        share.bytes = size
        share.from_begin, share.from_end = part[0][0], part[0][-1] + 1
        share.to_begin, share.to_end = part[1][0], part[1][-1] + 1
        share.source, share.target, share.source_step, share.target_step, share.copies = part[2:]
    return launched


def moved(collective, given, rank):
    """What `rank` gets, and where in an array of all ranks' blocks."""
    world = len(given)
    root, own = world - 1, slice(rank * given[0].size // world, (rank + 1) * given[0].size // world)
    result = given[rank].copy()
    if collective == "reduce_scatter":
        result[own] = sum(given)[own]
    elif collective in ("scatter", "broadcast"):
        at = own if collective == "scatter" else slice(given[0].size // world)
        result[at] = given[root][at]
    elif collective == "reduce" and rank == root:
        result[: given[0].size // world] = sum(given)[: given[0].size // world]
    elif collective == "all_to_all":
        result = np.concatenate([x[own] for x in given])
    elif collective == "all_gather" or (collective == "gather" and rank == root):
        result = np.concatenate([np.split(x, world)[r] for r, x in enumerate(given)])
    return result


@pytest.mark.parametrize("collective", FLAGGED)
@every_world
@pytest.mark.parametrize("count", [1, 7, 20_011])
def test_words_with_flags_move_blocks(make_ranks, collective, world, count):
    """In place, call after call, while the host does not wait. In most rounds a root hears of its peers' turns only."""
    ranks = make_ranks(world, blocks=1)
    given = [
        np.random.default_rng(rank).integers(-9, 9, world * count).astype("int32") for rank in range(world)
    ]
    spans = ranks.spans(given, 4)
    launched = flagged(ranks, collective, spans, 4 * count)
    for _ in range(3):
        ranks.launch("one_shot", launched)
        given = [moved(collective, given, rank) for rank in range(world)]
    ranks.finish()
    for span, wanted in zip(spans, given, strict=True):
        assert (span.get() == wanted).all()
        span.close()


@every_kernel
@pytest.mark.parametrize("world", [2, 3, 8])
def test_a_rank_that_never_comes_is_given_up(make_ranks, kernel, world):
    ranks = make_ranks(world)
    spans = ranks.spans(arrays(world, 1000))
    launched = errands(ranks, "sum", spans, spans, parts(kernel, world, 1000, 4))
    ranks.launch(kernel, launched[1:])
    wait_until(lambda: all(rank.report.contents.begun == 1 for rank in ranks.ranks[1:]))
    ranks.abort()
    ranks.finish()
    for rank in ranks.ranks[1:]:
        assert (rank.report.contents.begun, rank.done()) == (1, 0)
    for span in spans:
        span.close()


@every_kernel
def test_who_has_given_up_makes_no_further_call(make_ranks, kernel):
    """Calls may be in the stream already; the rank's counts are not what its peers expect."""
    ranks = make_ranks(2)
    spans = ranks.spans(arrays(2, 1000))
    launched = errands(ranks, "sum", spans, spans, parts(kernel, 2, 1000, 4))
    ranks.launch(kernel, launched[1:])
    wait_until(lambda: all(rank.report.contents.begun == 1 for rank in ranks.ranks[1:]))
    ranks.abort()
    ranks.finish()
    report = ranks.ranks[1].report.contents
    report.abort = 0
    ranks.launch(kernel, launched[1:] * 2)
    ranks.finish()  # it waits for nobody
    assert (report.begun, ranks.ranks[1].done()) == (1, 0)
    for span in spans:
        span.close()


def test_a_call_beside_another_is_told(make_ranks):
    """One block's box is in use: the call neither uses it nor is done, whatever other blocks do."""
    ranks = make_ranks(1, blocks=2)
    spans = ranks.spans(arrays(1, 1000))
    (rank,) = ranks.ranks
    rank.memory.put(np.ones(1, np.uint64), ranks.boxes.phases(1) + 2 * 8)
    ranks.launch("one_shot", errands(ranks, "sum", spans, spans, [Part()]))
    ranks.finish()
    assert (rank.report.contents.begun, rank.report.contents.overlaps, rank.done()) == (1, 1, 0)
    spans[0].close()


def test_a_rank_that_comes_too_late_writes_nobodys_memory(make_ranks):
    """The others have met there, but they are gone, and so may be their memory."""
    ranks = make_ranks(3)
    given = arrays(3, 1000)
    spans = ranks.spans(given)
    launched = errands(ranks, "sum", spans, spans, parts("direct", 3, 1000, 4))
    ranks.launch("direct", launched[1:])
    time.sleep(0.05)
    ranks.abort()
    ranks.finish()
    ranks.launch("direct", launched[:1])
    ranks.finish()
    assert [rank.done() for rank in ranks.ranks] == [0, 0, 0]
    for span, x in zip(spans, given, strict=True):
        assert (span.get() == x).all()
        span.close()


def test_what_lies_in_memory_of_a_rank_that_gave_up_is_left_alone(make_ranks):
    """By one that comes later, too, and has not heard of it."""
    ranks = make_ranks(2)
    given = arrays(2, 1000)
    spans = ranks.spans(given)
    launched = errands(ranks, "sum", spans, spans, parts("direct", 2, 1000, 4))
    ranks.launch("direct", launched[1:])
    time.sleep(0.05)
    ranks.ranks[1].report.contents.abort = 1
    ranks.library.synchronize(ranks.ranks[1].stream)
    ranks.launch("direct", launched[:1])
    time.sleep(0.05)
    ranks.abort()
    ranks.finish()
    for span, x in zip(spans, given, strict=True):
        assert (span.get() == x).all()
        span.close()


@every_kernel
@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_whose_calls_differ_are_given_up(make_ranks, kernel, world):
    """They meet all others before they combine, and name one with which they have nothing in common."""
    ranks = make_ranks(world)
    beyond = 0 if kernel == "direct" else 1 << 63  # the whole word counts, or its low bits
    contracts = [7] * (world - 1) + [7 + (beyond or 1)]
    given = arrays(world, 1000)
    spans = ranks.spans(given)
    of = parts(kernel, world, 1000, 4)
    ranks.launch(kernel, errands(ranks, "sum", spans, spans, of, contracts=contracts))
    wait_until(lambda: all(rank.report.contents.differs for rank in ranks.ranks))
    ranks.abort()
    ranks.finish()
    for rank, span, before in zip(ranks.ranks, spans, given, strict=True):
        # The last one differs from all the others: it names the first of those that have come.
        assert rank.report.contents.differs in (range(1, world) if rank.rank == world - 1 else [world])
        assert rank.done() == 0
        assert (span.get() == before).all()
        span.close()
