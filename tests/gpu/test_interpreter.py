"""Whole schedules inside kernels, as interpreter.h walks them: a CPU's thread for each block of each rank."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from ringreduce import _engine
from tests.conftest import slowly

from .ranks import LIBRARIES

LIBRARY = LIBRARIES / "libinterpreter_emulated.so"
COLLECTIVES = [
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
    "scan", "exscan",
]  # fmt: skip
WHOLE = ("all_reduce", "reduce", "broadcast", "scan", "exscan")
EVERY = [(collective, a.name) for collective in COLLECTIVES for a in ringreduce.algorithms(collective)]
SIZES = ctypes.c_size_t

every_algorithm = pytest.mark.parametrize("collective,algorithm", EVERY)


class Job(ctypes.Structure):
    _fields_ = [
        ("algorithm", ctypes.c_char_p),
        *[
            (name, ctypes.c_int)
            for name in ("collective", "dtype", "op", "world", "root", "blocks", "threads")
        ],
        *[(name, ctypes.c_int) for name in ("calls", "missing", "contrary")],
        *[(name, SIZES) for name in ("count", "slice_bytes", "arena_bytes")],
        ("factor", ctypes.c_double),
        *[(name, ctypes.POINTER(ctypes.c_void_p)) for name in ("inputs", "outputs")],
        ("counts", ctypes.POINTER(SIZES)),
        ("differing", ctypes.POINTER(ctypes.c_uint64)),
    ]


def job_of(collective, algorithm, inputs, outputs, count, op="sum", counts=None, **how):
    names = _engine.reduce
    pointers = [
        (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
        for arrays in (inputs, outputs)
    ]
    settings = {"root": 0, "blocks": 3, "threads": 5, "calls": 1, "missing": -1, "contrary": -1,
                "slice_bytes": 1024, "arena_bytes": 64 << 10, "factor": 1.0, **how}  # fmt: skip
    return Job(
        algorithm=algorithm.encode(), collective=COLLECTIVES.index(collective),
        dtype=names.dtypes().index(inputs[0].dtype.name), op=names.ops().index(op), world=len(inputs),
        count=count, inputs=pointers[0], outputs=pointers[1],
        counts=(SIZES * len(counts))(*counts) if counts else None,
        differing=(ctypes.c_uint64 * len(inputs))(), **settings,
    )  # fmt: skip


@pytest.fixture(scope="session")
def library():
    """Its functions, which raise what they say."""
    if not LIBRARY.exists():
        pytest.skip("not built: make emulated")
    found = ctypes.CDLL(str(LIBRARY))

    def check(failure, *_):
        if failure:
            raise RuntimeError(failure.decode())

    for function in (found.emulated_interpreter, found.emulated_batches):
        function.restype, function.errcheck = ctypes.c_char_p, check
    return found


@pytest.fixture(scope="session")
def interpreter(library):
    def run(*args, **how):
        """Runs one collective of as many ranks as there are inputs; results are in the outputs. Returns for each rank
        the peer that it has found to make another call, or None."""
        job = job_of(*args, **how)
        library.emulated_interpreter(ctypes.byref(job))
        return [peer - 1 if peer else None for peer in job.differing[: job.world]]

    return run


def blocks_of(collective, world, count, root, seed=1):
    """Inputs, and what each rank must have; None where that is nobody's business."""
    rng = np.random.default_rng(seed)
    whole = collective in WHOLE
    has_all = whole or collective not in ("all_gather", "gather")
    length = count if whole else count * world
    given = [rng.integers(-8, 9, length if has_all else count).astype("float32") for _ in range(world)]
    wanted = [None] * world
    for rank in range(world):
        own = slice(rank * count, (rank + 1) * count)
        if collective == "all_reduce" or (collective == "reduce" and rank == root):
            wanted[rank] = sum(given)
        elif collective == "reduce_scatter":
            wanted[rank] = sum(given)[own]
        elif collective == "all_gather" or (collective == "gather" and rank == root):
            wanted[rank] = np.concatenate(given)
        elif collective == "broadcast":
            wanted[rank] = given[root]
        elif collective == "scatter":
            wanted[rank] = given[root][own]
        elif collective == "scan" or (collective == "exscan" and rank > 0):
            wanted[rank] = sum(given[: rank + (collective == "scan")])
        elif collective == "all_to_all":
            wanted[rank] = np.concatenate([x[own] for x in given])
    return given, wanted


def room_for(collective, world, count):
    whole = collective in WHOLE
    one = collective in ("reduce_scatter", "scatter")
    return np.full(count if whole or one else count * world, np.nan, "float32")


@every_algorithm
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
def test_every_algorithm(interpreter, collective, algorithm, world):
    for count, root in ((1, 0), (37, world - 1), (5000, world // 2)):
        given, wanted = blocks_of(collective, world, count, root)
        kept = [x.copy() for x in given]
        results = [room_for(collective, world, count) for _ in range(world)]
        if collective == "broadcast":
            results[root][:] = given[root]
            given[root] = results[root]  # the root's buffer is the result as it is
        interpreter(collective, algorithm, given, results, count, root=root)
        for rank, result in enumerate(results):
            if wanted[rank] is not None:
                assert (result == wanted[rank]).all(), (rank, count)
            assert (given[rank] == kept[rank]).all()


@pytest.mark.parametrize(
    "collective,algorithm",
    [
        ("all_to_all", "direct"),
        ("all_gather", "direct"),
        ("reduce_scatter", "direct"),
        ("all_reduce", "two_shot"),
    ],
)
def test_steps_of_a_round_run_together(library, collective, algorithm):
    """However many peers there are; those of a ring have a round each."""

    def batches(algorithm, world):
        given, _ = blocks_of(collective, world, 64, 0)
        found = ctypes.c_int()
        job = job_of(collective, algorithm, given, given, 64)
        library.emulated_batches(ctypes.byref(job), world // 2, ctypes.byref(found))
        return found.value

    assert batches(algorithm, 4) == batches(algorithm, 8) == batches(algorithm, 16) > 0
    if collective != "all_to_all":
        assert batches("ring", 8) > batches("ring", 4) > batches(algorithm, 4)


@pytest.mark.parametrize("algorithm", [name for collective, name in EVERY if collective == "all_reduce"])
@pytest.mark.parametrize("world", [2, 6, *slowly(16, 32)])
def test_in_place_call_after_call(interpreter, algorithm, world):
    """Numbers of messages go on, in slots that the call before has used."""
    count, calls = 3001, 3
    given, _ = blocks_of("all_reduce", world, count, 0)
    wanted = sum(given) * np.float32(world) ** (calls - 1)
    interpreter("all_reduce", algorithm, given, given, count, calls=calls, slice_bytes=512)
    for x in given:
        assert (x == wanted).all()


@pytest.mark.parametrize(
    ("blocks", "slice_bytes", "arena"), [(1, 64, 16 << 10), (7, 100_000, 4 << 20), (16, 256, 32 << 10)]
)
def test_blocks_and_slices(interpreter, blocks, slice_bytes, arena):
    given, wanted = blocks_of("all_reduce", 4, 10_007, 0)
    for algorithm in ("ring", "two_shot", "recursive_doubling"):
        results = [np.zeros(10_007, "float32") for _ in given]
        how = {"blocks": blocks, "slice_bytes": slice_bytes, "arena_bytes": arena, "threads": 33}
        interpreter("all_reduce", algorithm, given, results, 10_007, **how)
        assert all((x == wanted[0]).all() for x in results)


@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "double_tree", "halving_doubling"])
def test_ops_and_dtypes(interpreter, algorithm):
    world, count = 4, 2003
    rng = np.random.default_rng(3)

    def results_of(given, op, factor=1.0):
        results = [np.zeros_like(x) for x in given]
        interpreter("all_reduce", algorithm, given, results, count, op, factor=factor)
        return results

    floats = [rng.integers(-8, 9, count).astype("float32") for _ in range(world)]
    for dtype in ("float32", ml_dtypes.bfloat16):
        given = [x.astype(dtype) for x in floats]
        for x in results_of(given, "avg"):
            assert (x.astype("float32") == sum(floats) / world).all()
        for x in results_of(given, "min"):
            assert (x.astype("float32") == np.minimum.reduce(floats)).all()
        for x in results_of(given, "sum", 0.5):
            assert (x.astype("float32") == sum(floats) / 2).all()
    integers = [rng.integers(-(2**31), 2**31, count).astype("int32") for _ in range(world)]
    for x in results_of(integers, "sum"):
        assert (x == sum(y.astype("int64") for y in integers).astype("int32")).all()


@pytest.mark.parametrize("algorithm", [name for collective, name in EVERY if collective == "all_gather"])
def test_uneven_blocks(interpreter, algorithm):
    counts = [700, 0, 3, 1500]
    given = [np.arange(count, dtype="float32") + 10_000 * rank for rank, count in enumerate(counts)]
    results = [np.zeros(sum(counts), "float32") for _ in counts]
    interpreter("all_gather", algorithm, given, results, max(counts), counts=counts)
    for x in results:
        assert (x == np.concatenate(given)).all()


@pytest.mark.parametrize("algorithm", [name for collective, name in EVERY if collective == "reduce_scatter"])
def test_uneven_sums(interpreter, algorithm):
    counts = [0, 1200, 5, 700]
    rng = np.random.default_rng(5)
    given = [rng.integers(-8, 9, sum(counts)).astype("float32") for _ in counts]
    results = [np.zeros(count, "float32") for count in counts]
    interpreter("reduce_scatter", algorithm, given, results, max(counts), counts=counts)
    for x, wanted in zip(results, np.split(sum(given), np.cumsum(counts)[:-1]), strict=True):
        assert (x == wanted).all()


def test_a_rank_that_never_comes_is_given_up(interpreter):
    given, _ = blocks_of("all_reduce", 3, 1000, 0)
    for algorithm in ("ring", "one_shot"):
        interpreter("all_reduce", algorithm, given, [x.copy() for x in given], 1000, missing=1)


@pytest.mark.parametrize("algorithm", [name for collective, name in EVERY if collective == "all_reduce"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_makes_another_call_is_named(interpreter, algorithm, world):
    """By those that get messages of it, and it names one that it gets messages of; the others wait in vain."""
    given, _ = blocks_of("all_reduce", world, 1000, 0)
    for contrary in range(world):
        results = [x.copy() for x in given]
        differing = interpreter("all_reduce", algorithm, given, results, 1000, contrary=contrary)
        named = {rank: peer for rank, peer in enumerate(differing) if peer is not None}
        assert named
        assert all((rank == contrary) != (peer == contrary) for rank, peer in named.items())


def test_what_does_not_fit_is_said(interpreter):
    x = [np.zeros(100, "float32")] * 33
    with pytest.raises(RuntimeError, match="at most 32 ranks, not 33"):
        interpreter("all_reduce", "ring", x, x, 100)
    too_small = r"512 bytes and 64 places .* the 1 messages of a round take up to 1280 bytes"
    with pytest.raises(RuntimeError, match=too_small):
        interpreter("all_reduce", "ring", x[:2], x[:2], 100_000, slice_bytes=1024, arena_bytes=512)
