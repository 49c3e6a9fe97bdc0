"""Reproducible communicators: every element of a result is the chain in rank order, to the bit, wherever it lies."""

from __future__ import annotations

import functools
import hashlib

import ml_dtypes
import numpy as np
import pytest

import ringreduce
from ringreduce import Recv, Round, Schedule, Send, _engine, schedules
from tests.conftest import on_processes, on_threads, slowly

# Magnitudes are spread over 2^-n to 2^n, so that the order of adding shows; results stay finite.
SPREAD = {
    np.float64: 12,
    np.float32: 12,
    np.float16: 12,
    ml_dtypes.bfloat16: 12,
    ml_dtypes.float8_e4m3fn: 5,
    ml_dtypes.float8_e5m2: 10,
}
DTYPES = [pytest.param(dtype, id=np.dtype(dtype).name) for dtype in SPREAD]
POOL = 100_003
SIZES = [1, 17, 4097, 70_001]
WORLDS = [3, *slowly(2, 8)]
KINDS = {collective: [e.name for e in schedules.algorithms(collective) if e.keeps_rank_order]
         for collective in ("all_reduce", "reduce_scatter", "reduce", "scan", "exscan")}  # fmt: skip
FACTORS = [0.3, -1.7, 2.9, 0.01, 1.5, -0.6, 1.1, 0.45]


def values(dtype, rank, count=POOL):
    draw = np.random.default_rng([rank, 7])
    spread = SPREAD[dtype]
    exponents = draw.integers(-spread, spread + 1, count)
    wide = np.float64 if dtype == np.float64 else np.float32  # ml_dtypes converts from float32 best
    return (draw.uniform(-1, 1, count) * 2.0**exponents).astype(wide).astype(dtype)


def chain(parts, op="sum", factors=None):
    """((r0 + r1) + r2) + ..., small floats in float32 and rounded once, by NumPy and ml_dtypes."""
    dtype = parts[0].dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    if factors is not None:
        parts = [(part.astype(wide) * wide(f)).astype(dtype) for part, f in zip(parts, factors, strict=False)]
    join = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op, np.add)
    with np.errstate(over="ignore"):
        total = functools.reduce(join, [part.astype(wide) for part in parts])
        return (total * wide(1 / len(parts)) if op == "avg" else total).astype(dtype)


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, wanted, *what):
    assert actual.shape == wanted.shape and actual.dtype == wanted.dtype
    differ = np.flatnonzero(bits(actual) != bits(wanted))
    assert differ.size == 0, (what, differ[:4], actual[differ[:4]], wanted[differ[:4]])


@functools.cache
def expected(dtype, world, pool):
    """Everybody's values, their sums, averages and sums of multiples. Worked out before there are ranks."""
    parts = [values(dtype, rank, pool) for rank in range(world)]
    return parts, chain(parts), chain(parts, "avg"), chain(parts, factors=FACTORS)


class Case:
    """One rank's part of random values, and what any reduction of any stretch of them must give."""

    def __init__(self, comm, dtype, pool=POOL):
        assert comm.reproducible
        self.comm, self.pool = comm, pool
        parts, self.sums, self.means, self.scaled = expected(dtype, comm.size, pool)
        self.mine, self.dtype = parts[comm.rank], dtype

    def array(self, start, count, shared=False, ahead=0):
        """These values somewhere in memory: `ahead` elements after where an allocation begins."""
        make = ringreduce.empty if shared else np.zeros
        x = make(count + ahead, self.dtype)[ahead:]
        x[:] = self.mine[start : start + count]
        return x

    def all_reduce(self, start, count, algorithm):
        comm, stretch = self.comm, slice(start, start + count)
        what = (algorithm, start, count)
        for shared in (False, True, comm.rank % 2 == 0):
            x = self.array(start, count, shared, ahead=start % 5)
            assert_same_bits(comm.all_reduce(x, algorithm=algorithm), self.sums[stretch], what, shared)
            x = self.array(start, count, shared)
            out = self.array(0, count, not shared, ahead=1)
            comm.all_reduce(x, "avg", out=out, algorithm=algorithm)
            assert_same_bits(out, self.means[stretch], what, shared, "avg")
        x = self.array(start, count)
        comm.all_reduce(x, factor=FACTORS[comm.rank], algorithm=algorithm)
        assert_same_bits(x, self.scaled[stretch], what, "factor")

    def reduce(self, start, count, algorithm):
        for root in {0, self.comm.size // 2, self.comm.size - 1}:
            got = self.comm.reduce(self.array(start, count), root, algorithm=algorithm)
            if self.comm.rank == root:
                assert_same_bits(got, self.sums[start : start + count], algorithm, start, count)

    def scan(self, start, count, algorithm, upto=1):
        parts = expected(self.dtype, self.comm.size, self.pool)[0][: self.comm.rank + upto]
        got = getattr(self.comm, "scan" if upto else "exscan")(self.array(start, count), algorithm=algorithm)
        wanted = chain([part[start : start + count] for part in parts]) if parts else np.zeros_like(got)
        assert_same_bits(got, wanted, algorithm, start, count, upto)

    def exscan(self, start, count, algorithm):
        self.scan(start, count, algorithm, upto=0)

    def reduce_scatter(self, start, count, algorithm):
        comm, world = self.comm, self.comm.size
        uneven = [count // (r + 1) if r != 1 else 0 for r in range(world)]
        for counts in ([count // world] * world, uneven):
            ends = [0, *np.cumsum(counts).tolist()]
            mine = slice(start + ends[comm.rank], start + ends[comm.rank + 1])
            if start + ends[-1] > self.pool:
                continue
            for shared in (False, True):
                x = self.array(start, ends[-1], shared, ahead=3)
                more = {} if counts is not uneven else {"counts": counts}
                got = comm.reduce_scatter(x, algorithm=algorithm, **more)
                assert_same_bits(got, self.sums[mine], algorithm, start, counts)
                out = x[ends[comm.rank] : ends[comm.rank + 1]]
                comm.reduce_scatter(x, "avg", out=out, algorithm=algorithm, **more)
                assert_same_bits(out, self.means[mine], algorithm, start, counts, "avg")


def check_everything(comm, dtype, sizes, pool=POOL):
    case = Case(comm, dtype, pool)
    for count in sizes:
        for start in (0, 20_011):
            for collective, names in KINDS.items():
                for algorithm in ("auto", *names):
                    getattr(case, collective)(start, count, algorithm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", WORLDS)
def test_results_are_the_chain_in_rank_order(on_ranks, world, dtype):
    expected(dtype, world, POOL)
    on_ranks(world, check_everything, dtype, SIZES, reproducible=True)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_several_slices(on_ranks, dtype):
    expected(dtype, 3, 300_007)
    on_ranks(3, check_everything, dtype, [250_007], 300_007, reproducible=True)


def check_small_slices(comm, dtype):
    """The engine's own call, which takes the length of slices and how many are in flight."""
    case = Case(comm, dtype)
    for collective in ("all_reduce", "reduce"):
        for name in KINDS[collective]:
            handle = _engine.algorithm_handle(collective, name)
            for slice_bytes, lanes, count in [
                (64, 1, 999),
                (192, 4, 5003),
                (1 << 10, 3, 20_011),
                (1 << 15, 2, 90_001),
            ]:
                for shared in (False, True):
                    x = case.array(31, count, shared)
                    target = x if collective == "all_reduce" or comm.rank == 0 else None
                    comm._c.collective(
                        collective, x, target, "sum", None, 0, handle, None, None, None, False,
                        slice_bytes=slice_bytes, lanes=lanes,
                    )  # fmt: skip
                    if target is not None:
                        assert_same_bits(x, case.sums[31 : 31 + count], name, slice_bytes, lanes, count)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("world", WORLDS)
def test_small_slices(on_ranks, world, dtype):
    on_ranks(world, check_small_slices, dtype, reproducible=True)


@pytest.mark.parametrize("world", [13, *slowly(16)])
def test_larger_worlds(world):
    def rank_main(comm):
        parts = [values(np.float16, rank, 5000) for rank in range(comm.size)]
        for algorithm in ("auto", *KINDS["all_reduce"]):
            for count in (1, 40, 5000):
                x = parts[comm.rank][:count].copy()
                comm.all_reduce(x, algorithm=algorithm)
                assert_same_bits(x, chain(parts)[:count], algorithm, count)
        for op in ("prod", "min", "max"):
            x = parts[comm.rank][:100].copy()
            assert_same_bits(comm.all_reduce(x, op), chain([part[:100] for part in parts], op), op)

    on_threads(world, rank_main, reproducible=True)


def test_complex_numbers_are_pairs_of_floats():
    def rank_main(comm):
        for dtype, part in ((np.complex64, np.float32), (np.complex128, np.float64)):
            parts = [values(part, rank, 20_000) for rank in range(comm.size)]
            for algorithm in ("auto", *KINDS["all_reduce"]):
                x = parts[comm.rank].copy()
                comm.all_reduce(x.view(dtype), algorithm=algorithm)
                assert_same_bits(x, chain(parts), algorithm, dtype)

    on_threads(3, rank_main, reproducible=True)


def test_asynchronous_calls():
    def rank_main(comm):
        case = Case(comm, np.float32)
        xs = [case.array(start, 3000) for start in (0, 50, 600)]
        for start, work in zip((0, 50, 600), [comm.all_reduce(x, async_op=True) for x in xs], strict=True):
            assert_same_bits(work.wait(), case.sums[start : start + 3000])

    on_threads(4, rank_main, reproducible=True)


def test_order_shows_in_these_values():
    """Otherwise the tests above could not fail: as a tree, whose sums are rounded in between, others come out."""
    for dtype in SPREAD:
        parts = [values(dtype, rank, 5000) for rank in range(4)]
        tree = chain([chain(parts[:2]), chain(parts[2:])])
        assert (bits(tree) != bits(chain(parts))).mean() > 0.05, dtype


def test_what_auto_picks_keeps_rank_order():
    for world in (1, 2, 3, 4, 8, 9, 16, 64):
        comm = ringreduce.local_group(world, reproducible=True)[0]
        for collective, names in KINDS.items():
            for nbytes in [0, 1, *(1 << i for i in range(1, 40, 2))]:
                choice = comm.explain(nbytes, collective)
                assert choice.algorithm in names and "rank order" in choice.reason


def test_up_to_4_ranks_the_mode_changes_no_choice():
    """Of scans it does: they usually run a chain, which rounds at each rank."""
    for world in range(1, 5):
        usual, kept = (ringreduce.local_group(world, reproducible=mode)[0] for mode in (False, True))
        for collective in KINDS.keys() - {"scan", "exscan"}:
            for nbytes in [0, 1, *(1 << i for i in range(1, 40))]:
                one, other = usual.explain(nbytes, collective), kept.explain(nbytes, collective)
                assert (one.algorithm, one.slice_bytes) == (other.algorithm, other.slice_bytes)


def test_who_is_reproducible(monkeypatch):
    def rank_main(comm):
        with comm.split(0) as part:
            part.barrier()  # all have come out of split(): shrink() ends whatever is under way
            return comm.reproducible, part.reproducible, comm.shrink().reproducible

    monkeypatch.delenv("RINGREDUCE_REPRODUCIBLE", raising=False)
    assert on_threads(2, rank_main) == [(False,) * 3] * 2
    assert on_threads(2, rank_main, reproducible=True) == [(True,) * 3] * 2
    monkeypatch.setenv("RINGREDUCE_REPRODUCIBLE", "1")
    assert on_threads(2, rank_main) == [(True,) * 3] * 2
    assert on_processes(2, rank_main) == [(True,) * 3] * 2
    assert on_threads(2, rank_main, reproducible=False) == [(False,) * 3] * 2
    assert _engine.choose("all_reduce", 8, 16)[0] in KINDS["all_reduce"]
    for no in ("", "0"):
        monkeypatch.setenv("RINGREDUCE_REPRODUCIBLE", no)
        assert on_threads(2, rank_main) == [(False,) * 3] * 2
    monkeypatch.setenv("RINGREDUCE_REPRODUCIBLE", "yes")
    with pytest.raises(ValueError, match="RINGREDUCE_REPRODUCIBLE must be 0 or 1, not 'yes'"):
        ringreduce.local_group(2)


def test_other_algorithms_are_refused():
    def rank_main(comm):
        x = np.ones(2 * comm.size, "float32")
        for collective, names in KINDS.items():
            for entry in schedules.algorithms(collective):
                if entry.name in names:
                    continue
                with pytest.raises(ValueError, match=rf"'{entry.name}'.*rank order.*: {', '.join(names)}$"):
                    getattr(comm, collective)(x, algorithm=entry.name)
        for collective in ("all_gather", "broadcast", "all_to_all"):  # nothing is added
            for entry in schedules.algorithms(collective):
                getattr(comm, collective)(x, algorithm=entry.name)
        return comm.all_reduce(x)[0]

    assert on_threads(2, rank_main, reproducible=True) == [2, 2]


def test_an_environment_that_names_another_algorithm_is_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "all_reduce=ring")
    with pytest.raises(ValueError, match=r"'ring' .*does not combine.*in rank order.*one_shot, two_shot"):
        ringreduce.local_group(2, reproducible=True)
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "all_reduce=one_shot,all_gather=ring")
    group = ringreduce.local_group(2, reproducible=True)
    assert group[0].explain(1 << 20).algorithm == "one_shot"


def everybody(world, rank):
    others = [r for r in range(world) if r != rank]
    swap = Round([Send([0], others)], [Recv([0], r, reduce=True) for r in others])
    return Schedule("all_reduce", world, rank, 1, [swap] if others else [])


def passing_on(world, rank):
    """In rank order, but a rank after the other, so that every step rounds."""
    rounds = []
    if rank > 0:
        rounds.append(Round([], [Recv([0], rank - 1, reduce=True)]))
    if rank + 1 < world:
        rounds += [Round([Send([0], [rank + 1])]), Round([], [Recv([0], world - 1)])]
    elif rank > 0:
        rounds.append(Round([Send([0], list(range(rank)))]))
    return Schedule("all_reduce", world, rank, 1, rounds)


def test_algorithms_of_the_users_own():
    def rank_main(comm):
        parts = [values(ml_dtypes.bfloat16, rank, 3000) for rank in range(comm.size)]
        x = parts[comm.rank].copy()
        if comm.size == 2:
            assert_same_bits(comm.all_reduce(x.copy(), algorithm=passing_on), chain(parts))
        else:
            with pytest.raises(ValueError, match=r"'passing_on' .*does not combine.*in rank order"):
                comm.all_reduce(x.copy(), algorithm=passing_on)
        assert_same_bits(comm.all_reduce(x, algorithm=everybody), chain(parts))

    for world in (2, 3, 4):
        on_threads(world, rank_main, reproducible=True)


@pytest.mark.parametrize("call", ["all_reduce", "barrier", "broadcast"])
def test_ranks_that_disagree_are_told_who_is_reproducible(call):
    def rank_main(comm):
        def exchange(blob):
            card = np.zeros(1024, "uint8")
            card[: len(blob)] = np.frombuffer(blob, "uint8")
            sizes = comm.all_gather(np.array([len(blob)]))
            cards = comm.all_gather(card).reshape(comm.size, -1)
            return [bytes(cards[r, : sizes[r]]) for r in range(comm.size)]

        own = ringreduce.init(comm.rank, comm.size, exchange, timeout=30, reproducible=comm.rank == 1)
        with pytest.raises(ringreduce.MismatchError) as caught:
            getattr(own, call)(*([np.ones(8, "float32")] if call != "barrier" else []))
            own.barrier()  # whoever only sends learns at a later call
        return str(caught.value)

    for text in on_processes(3, rank_main):
        assert f"rank 0: {call}(" in text and f"rank 1: reproducible {call}(" in text, text
        assert f"rank 2: {call}(" in text, text


def digest_of_everything(comm):
    """By every algorithm, of every float type; asserts that all ranks have the same bits."""
    digest = hashlib.sha256()
    for dtype in SPREAD:
        mine = values(dtype, comm.rank, 5003)
        for algorithm in ("auto", *(entry.name for entry in schedules.algorithms("all_reduce"))):
            for op in ("sum", "avg"):
                x = comm.all_reduce(mine.copy(), op, algorithm=algorithm)
                everybodys = comm.all_gather(x.view("uint8")).reshape(comm.size, -1)
                assert (everybodys == everybodys[0]).all(), (algorithm, dtype, op)
                digest.update(x.tobytes())
        rows = mine[: comm.size * 500].copy()
        for collective in ("reduce_scatter", "reduce"):
            for entry in schedules.algorithms(collective):
                y = getattr(comm, collective)(rows.copy(), algorithm=entry.name)
                digest.update(b"" if y is None else y.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("world", [3, *slowly(2, 8)])
def test_without_the_mode_ranks_and_runs_agree_too(world):
    first = on_processes(world, digest_of_everything)
    assert on_processes(world, digest_of_everything) == first
    assert on_threads(world, digest_of_everything) == first
