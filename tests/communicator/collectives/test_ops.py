"""Operators that programs define, in every reduction."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import pickle
import re
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

import ringreduce
from ringreduce import Recv, Round, Schedule, Send
from tests.communicator.collectives.test_dtypes import NUMBERS
from tests.conftest import on_processes, on_threads, slowly

REDUCTIONS = [name for name, one in ringreduce.schedules.COLLECTIVES.items() if one.reduces]
AFFINE = np.dtype([("times", "i4"), ("plus", "i8")])  # 12 bytes
PRIME = 1009


def after(a, b):
    """x -> b(a(x)) modulo a prime: associative, and not commutative."""
    out = np.empty_like(b)
    out["times"] = a["times"] * b["times"] % PRIME
    out["plus"] = (a["plus"] * b["times"] + b["plus"]) % PRIME
    return out


def largest(a, b):
    np.maximum(a, b, out=b)


AFTER = ringreduce.op(after, commutative=False)
LARGEST = ringreduce.op(largest, commutative=True)


def maps(count, rank):
    x = np.zeros(count, AFFINE)
    x["times"] = (np.arange(count) * 7 + rank) % 97 + 2
    x["plus"] = np.arange(count) + 31 * rank
    return x


def chain(parts):
    return functools.reduce(after, parts) if parts else None


def names(collective, order):
    return ["auto", *(e.name for e in ringreduce.algorithms(collective) if e.order in order)]


def check_order(comm, sizes):
    rank, world = comm.rank, comm.size
    for collective in REDUCTIONS:
        for name in names(collective, ("kept", "at_once")):
            for count in sizes:
                count = -(-count // world) * world if collective == "reduce_scatter" else count
                parts = [maps(count, r) for r in range(world)]
                x = parts[rank].copy()
                if collective == "reduce":
                    result = comm.reduce(x, world - 1, AFTER, algorithm=name)
                else:
                    result = getattr(comm, collective)(x, AFTER, algorithm=name)
                wanted = chain(parts[: {"scan": rank + 1, "exscan": rank}.get(collective, world)])
                if collective == "reduce_scatter":
                    wanted = np.split(wanted, world)[rank]
                if collective == "reduce" and rank != world - 1:
                    assert result is None
                elif wanted is None:
                    assert (result == parts[0]).all()  # exscan leaves rank 0's array as it is
                else:
                    assert (result == wanted).all(), (collective, name, count)


@pytest.mark.parametrize("world", [5, *slowly(3, 8), *slowly(2)])
def test_rank_order_is_kept(on_ranks, world):
    on_ranks(world, check_order, [1, 300, 30_011])


def check_shared(comm):
    """Arrays that peers read in place, and several slices."""
    for count in (3000, 200_003):
        x = ringreduce.empty(count * AFFINE.itemsize, "uint8").view(AFFINE)
        for collective in ("all_reduce", "scan"):
            for name in names(collective, ("kept", "at_once")):
                x[:] = maps(count, comm.rank)
                parts = [
                    maps(count, r) for r in range(comm.size if collective == "all_reduce" else comm.rank + 1)
                ]
                assert (getattr(comm, collective)(x, AFTER, algorithm=name) == chain(parts)).all(), (
                    collective,
                    name,
                )


@pytest.mark.parametrize("world", [3, *slowly(2)])
def test_shared_arrays(world):
    on_processes(world, check_shared)


def check_dtypes(comm):
    for dtype in [*NUMBERS, np.bool_]:
        for collective in ("all_reduce", "scan"):
            for name in names(collective, ("any", "kept", "at_once")):
                x = (np.arange(70) % 2 + comm.rank % 2).astype(dtype)
                parts = [(np.arange(70) % 2 + r % 2).astype(dtype) for r in range(comm.size)]
                if np.dtype(dtype).kind == "c":
                    continue
                parts = parts if collective == "all_reduce" else parts[: comm.rank + 1]
                got = getattr(comm, collective)(x, LARGEST, algorithm=name)
                assert (got == functools.reduce(np.maximum, parts)).all(), (dtype, name)


def test_every_dtype_and_algorithm():
    on_threads(4, check_dtypes)


@pytest.mark.parametrize(
    "dtype", ["S5", "datetime64[s]", "V3", "longdouble", [("far", "u1", 300), ("one", "f8")]]
)
def test_elements_of_other_dtypes(dtype):
    dtype = np.dtype(dtype)

    def last(a, b):
        return b

    def rank_main(comm):
        parts = [
            np.frombuffer(bytes((i * (r + 3)) % 60 for i in range(40 * dtype.itemsize)), dtype)
            for r in range(3)
        ]
        right = ringreduce.op(last, commutative=False)
        for _ in range(2):
            x = parts[comm.rank].copy()
            assert comm.all_reduce(x, right) is x
            assert x.tobytes() == parts[-1].tobytes()
        out = np.zeros_like(x)
        assert comm.scan(parts[comm.rank].copy(), right, out=out) is out
        assert out.tobytes() == parts[comm.rank].tobytes()

    on_threads(3, rank_main)


def test_long_elements_and_too_long_ones():
    def add(a, b):
        b["all"] += a["all"]

    def rank_main(comm):
        total = ringreduce.op(add, commutative=True)
        for length in (30, 5000, 50_000):
            x = np.zeros(7, [("all", "i4", length)])
            x["all"] = np.arange(length) + comm.rank
            comm.all_reduce(x, total)
            assert (x["all"] == 3 * np.arange(length) + 3).all()
        with pytest.raises(ValueError, match=r"elements have 40000000 bytes, but "):
            comm.all_reduce(np.zeros(2, [("all", "i4", 10_000_000)]), total)
        return comm.all_reduce(np.ones(1))[0]

    assert on_threads(3, rank_main) == [3, 3, 3]


def test_forms(on_ranks):
    torch = pytest.importorskip("torch")

    def rank_main(comm):
        rank, world = comm.rank, comm.size
        works = [comm.all_reduce(maps(n, rank), AFTER, async_op=True) for n in (5, 5000)]
        for n, work in zip((5, 5000), works, strict=True):
            assert (work.wait() == chain([maps(n, r) for r in range(world)])).all()
        counts = [3, 0, 5][:world]
        got = comm.reduce_scatter(maps(8, rank), AFTER, counts=counts)
        start = sum(counts[:rank])
        assert (got == chain([maps(8, r) for r in range(world)])[start : start + counts[rank]]).all()
        t = torch.full((4, 3), float(rank), dtype=torch.bfloat16)
        assert comm.all_reduce(t, LARGEST) is t and (t == world - 1).all()
        x = np.full((4, 6), rank)[:, ::2]
        assert (comm.all_reduce(x, LARGEST) == world - 1).all()
        assert comm.all_reduce(np.empty(0, AFFINE), AFTER).size == 0

    on_ranks(3, rank_main)


def test_algorithms_that_change_the_order_are_refused(monkeypatch):
    def rank_main(comm):
        for name in names("all_reduce", ("any",))[1:]:
            with pytest.raises(
                ValueError, match=rf"'{name}' .*which does not commute.*: tree, one_shot, two_shot$"
            ):
                comm.all_reduce(maps(3, 0), AFTER, algorithm=name)
        for reduction in ("chain", "tree"):
            with pytest.raises(ValueError, match=r"these reduce algorithms do: direct$"):
                comm.reduce(maps(3, 0), 1, AFTER, algorithm=reduction)
        return comm.all_reduce(np.ones(1))[0]

    assert on_threads(2, rank_main) == [2, 2]
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "ring")

    def forced(comm):
        with pytest.raises(ValueError, match="'ring' cannot be used with op"):
            comm.all_reduce(maps(3, 0), AFTER)
        return comm.all_reduce(np.array([comm.rank]), LARGEST)[0]

    assert on_threads(2, forced) == [1, 1]


def star(order, world, rank):
    """Rank 0 adds what the others send, in this order, and sends them the result."""
    if rank > 0:
        return Schedule("all_reduce", world, rank, 1, [Round([Send([0], [0])]), Round([], [Recv([0], 0)])])
    rounds = [Round([], [Recv([0], other, reduce=True)]) for other in order]
    return Schedule("all_reduce", world, rank, 1, [*rounds, Round([Send([0], sorted(order))])])


def test_algorithms_of_the_users_own():
    def kept(world, rank):
        return star([1, 2], world, rank)

    def turned(world, rank):
        return star([2, 1], world, rank)

    def rank_main(comm):
        parts = [maps(50, r) for r in range(comm.size)]
        own = parts[comm.rank]
        assert (comm.all_reduce(np.full(4, comm.rank), LARGEST, algorithm=turned) == 2).all()
        assert (comm.all_reduce(own.copy(), AFTER, algorithm=kept) == chain(parts)).all()
        with pytest.raises(ValueError, match=r"'turned' cannot be used with op .*which does not commute"):
            comm.all_reduce(own.copy(), AFTER, algorithm=turned)

    on_threads(3, rank_main)


def test_on_reproducible_communicators_all_values_are_combined_at_once():
    def rank_main(comm):
        x = np.array([comm.rank])
        for name in names("scan", ("any", "kept"))[1:]:
            with pytest.raises(ValueError, match="reproducible communicator"):
                comm.scan(x, LARGEST, algorithm=name)
        return comm.scan(x, LARGEST)[0]

    assert on_threads(3, rank_main, reproducible=True) == [0, 1, 2]


def test_other_arguments_are_refused():
    def rank_main(comm):
        x = np.ones(8, "float32")
        for what, how in (
            ("factor can only be used with op 'sum', not with op 'tests.*largest'", {"factor": 2.0}),
            ("wire cannot be used with op 'tests.*largest'", {"wire": "int8"}),
        ):
            with pytest.raises(ValueError, match=what):
                comm.all_reduce(x, LARGEST, **how)
        with pytest.raises(TypeError, match="without Python objects"):
            comm.all_reduce(np.array([(1, None)], [("a", "i4"), ("b", "O")]), AFTER)
        with pytest.raises(ValueError, match=r"x has dtype .*, but out has float32"):
            comm.all_reduce(maps(8, 0), AFTER, out=x)
        with pytest.raises(TypeError, match="op must be a string"):
            comm.all_reduce(x, largest)
        return comm.all_reduce(x)[0]

    assert on_threads(2, rank_main) == [2, 2]
    with pytest.raises(TypeError, match="function must be a function or a function pointer, not int"):
        ringreduce.op(3, commutative=True)
    with pytest.raises(TypeError, match="commutative must be True or False"):
        ringreduce.op(largest, commutative=None)


@pytest.mark.parametrize("name", ["all_reduce", "scan", "reduce_scatter"])
def test_a_mismatch_names_both_operators(on_ranks, name):
    def rank_main(comm):
        mine = ringreduce.op(largest, commutative=True, name=f"operator_of_rank_{comm.rank}")
        with pytest.raises(ringreduce.MismatchError) as caught:
            getattr(comm, name)(np.ones(2), mine)
            comm.barrier()
        return str(caught.value)

    count = 1 if name == "reduce_scatter" else 2
    for text in on_ranks(2, rank_main):
        for rank in range(2):
            assert f"rank {rank}: {name}(float64[{count}], operator_of_rank_{rank}) by " in text, text


def test_ranks_agree_on_whether_it_commutes_and_on_its_elements():
    def rank_main(comm):
        failed = []
        for change in ({"commutative": comm.rank == 0}, {"name": "a" * 60 + "b" * comm.rank}, {}):
            mine = ringreduce.op(**{"function": after, "commutative": False, "name": "x", **change})
            kind = AFFINE if change or comm.rank else np.dtype([("times", "i8"), ("plus", "i4")])
            with comm.split(0) as part, pytest.raises(ringreduce.MismatchError):
                part.all_reduce(np.zeros(3, kind), mine)
                part.barrier()
            failed.append(change)
        return len(failed)

    assert on_threads(2, rank_main) == [3, 3]


def fails_on_rank_2(comm, collective, asynchronous):
    error = ZeroDivisionError("no\nrate")

    def careful(a, b):
        if comm.rank == 2:
            raise error
        return a + b

    mine = ringreduce.op(careful, commutative=True, name="careful")

    def call(x):
        root = {"root": 2} if collective == "reduce" else {}
        algorithm = names(collective, ("at_once",))[1]  # in which this rank combines
        work = getattr(comm, collective)(x, op=mine, async_op=asynchronous, algorithm=algorithm, **root)
        return work.wait() if asynchronous else work

    with pytest.raises((ZeroDivisionError, ringreduce.OpFailed)) as caught:
        call(np.ones(999))
        comm.barrier()  # whoever was done already learns here
    told = caught.value
    if comm.rank == 2:
        assert told is error
        assert traceback.extract_tb(told.__traceback__)[-1].name == "careful"
        told = told.__cause__
    for later in (comm.barrier, lambda: call(np.ones(999))):
        with pytest.raises(ringreduce.OpFailed, match=re.escape(str(told))):
            later()
    with comm.shrink() as others:
        assert others.all_reduce(np.ones(1))[0] == 3
    return type(told), told.rank, str(told)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_an_exception_reaches_its_own_rank_and_the_others_learn_of_it(on_ranks, collective, asynchronous):
    def rank_main(comm):
        with comm.split(0) as part:
            return fails_on_rank_2(part, collective, asynchronous)

    for kind, rank, text in on_ranks(3, rank_main):
        assert kind is ringreduce.OpFailed and rank == 2
        assert text.startswith(f"op 'careful' failed on rank 2 in call #1, {collective}(float64["), text
        assert text.endswith(", which ended the group: ZeroDivisionError: no rate"), text


def test_every_rank_raises_its_own_exception():
    together = threading.Barrier(3)  # a rank that learns of another's exception first raises none of its own

    def rank_main(comm):
        def careless(a, b):
            together.wait(60)
            return [][comm.rank]

        mine = ringreduce.op(careless, commutative=True)
        with pytest.raises(IndexError):
            comm.all_reduce(np.ones(1000), mine, algorithm="one_shot")

    on_threads(3, rank_main)


def test_an_exception_keeps_its_own_cause():
    together = threading.Barrier(2)

    def rank_main(comm):
        def careful(a, b):
            together.wait(60)
            try:
                return a + {}["b"]
            except KeyError as missing:
                raise ValueError from missing

        with pytest.raises(ValueError) as caught:
            comm.all_reduce(np.ones(9), ringreduce.op(careful, commutative=True), algorithm="one_shot")
        assert isinstance(caught.value.__cause__, KeyError)

    on_threads(2, rank_main)


def test_calls_behind_it_fail_with_the_group():
    together = threading.Barrier(2)

    def rank_main(comm):
        def stuck(a, b):
            entered.wait(60)
            together.wait(60)
            raise ZeroDivisionError

        entered = threading.Event()
        mine = ringreduce.op(stuck, commutative=True, name="stuck")
        first = comm.all_reduce(np.ones(9), mine, algorithm="one_shot", async_op=True)
        behind = comm.all_reduce(np.ones(9), async_op=True)
        entered.set()
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                first.wait()
        assert isinstance(first.exception(), ZeroDivisionError)
        with pytest.raises(ringreduce.OpFailed, match=r"op 'stuck' failed on rank .*: ZeroDivisionError$"):
            behind.wait()

    on_threads(2, rank_main)


def test_an_exception_and_its_frames_are_not_kept():
    """Not even if a thread of the engine was the last to hold them."""

    class Big:
        pass

    together = threading.Barrier(2)

    def rank_main(comm):
        seen = []

        def careful(a, b):
            big = Big()
            seen.append(weakref.ref(big))
            together.wait(60)
            raise ZeroDivisionError

        mine = ringreduce.op(careful, commutative=True)
        for asynchronous in (False, True):
            with comm.split(0) as part, contextlib.suppress(ZeroDivisionError):
                work = part.all_reduce(np.ones(9), mine, algorithm="one_shot", async_op=asynchronous)
                work.wait()
        work = None
        alone = ringreduce.local_group(1)[0]
        until = time.monotonic() + 60
        while any(kept() for kept in seen) and time.monotonic() < until:
            alone.all_reduce(
                np.ones(1), async_op=True
            ).wait()  # when the engine lets go of what it has dropped
            gc.collect()
        return [kept() for kept in seen]

    assert on_threads(2, rank_main) == [[None, None]] * 2


def test_results_that_do_not_fit():
    together = threading.Barrier(2)

    def rank_main(comm):
        def first_but_one(a, b):
            together.wait(60)
            return a[:-1]

        short = ringreduce.op(first_but_one, commutative=True, name="short")
        with pytest.raises(ValueError, match=r"the op returned .*\(9,\) .*\(10,\)"):
            comm.all_reduce(np.ones(10), short, algorithm="one_shot")

    on_threads(2, rank_main)


SOURCE = """
#include <stddef.h>
void left(const void *a, void *b, size_t n) {  /* of pairs of doubles: the first wins */
  const double *x = a; double *y = b;
  for (size_t i = 0; i < 2 * n; ++i) y[i] = x[i];
}
void add(const void *a, void *b, size_t n) {
  const double *x = a; double *y = b;
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory):
    folder = tmp_path_factory.mktemp("op")
    (folder / "op.c").write_text(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "op.so", folder / "op.c"], check=True)
    return ctypes.CDLL(str(folder / "op.so"))


def test_function_pointers(in_c):
    add, left = ringreduce.op(in_c.add, commutative=True), ringreduce.op(in_c.left, commutative=False)
    assert add.name.endswith("add")

    def rank_main(comm):
        for count in (1, 1000, 300_001):
            x = np.arange(count) + float(comm.rank)
            comm.all_reduce(x, add)
            assert (x == 3 * np.arange(count) + 3).all()
            pairs = np.full(count, comm.rank, [("a", "f8"), ("b", "f8")])
            comm.all_reduce(pairs, left)
            assert (pairs["b"] == 0).all()

    on_threads(3, rank_main)


def test_cfuncs_of_numba():
    numba = pytest.importorskip("numba")
    from numba import carray, cfunc, types

    @cfunc(types.void(types.CPointer(types.double), types.CPointer(types.double), types.size_t))
    def multiply(a, b, n):
        x, y = carray(a, n), carray(b, n)
        for i in range(n):
            y[i] = x[i] * y[i]

    mine = ringreduce.op(multiply, commutative=True)
    assert mine.name.endswith("multiply") and numba

    def rank_main(comm):
        return comm.all_reduce(np.full(5000, comm.rank + 2.0), mine)[-1]

    assert on_threads(3, rank_main) == [24.0] * 3


def test_explain_knows_the_order():
    comm = ringreduce.local_group(16)[0]
    for collective in REDUCTIONS:
        for nbytes in (0, 100, 1 << 17, 1 << 22, 1 << 30):
            choice = comm.explain(nbytes, collective, op=AFTER)
            assert choice.algorithm in names(collective, ("kept", "at_once")), collective
            assert choice.reason.endswith("among those for operators that do not commute")
            assert (
                comm.explain(nbytes, collective, op=LARGEST).reason == comm.explain(nbytes, collective).reason
            )


def test_it_can_be_pickled():
    copy = pickle.loads(pickle.dumps(AFTER))
    assert (copy.function, copy.commutative, copy.name) == (after, False, f"{__name__}.after")
    assert repr(copy) == f"ringreduce.op('{__name__}.after', commutative=False)"


def test_interrupts_pass():
    def rank_main(comm):
        def stop(a, b):
            raise KeyboardInterrupt

        mine = ringreduce.op(stop, commutative=True)
        with pytest.raises((KeyboardInterrupt, ringreduce.OpFailed)) as caught:
            comm.all_reduce(np.ones(3), mine)
        return caught.type is KeyboardInterrupt

    assert any(on_threads(2, rank_main))


@pytest.mark.slow
def test_bfloat16_without_a_name_for_it():
    """NumPy knows the names of ml_dtypes' types only once that is imported."""
    pytest.importorskip("torch")
    program = (
        "import numpy as np, ringreduce, torch, sys\n"
        "def main(comm):\n"
        "    x = torch.full((3,), comm.rank + 1.0, dtype=torch.bfloat16)\n"
        "    return comm.all_reduce(x, ringreduce.op(np.multiply, commutative=True)).tolist()\n"
        "if __name__ == '__main__': print(ringreduce.run(main, 2))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert out.stdout == f"{[[2.0] * 3] * 2}\n", out.stderr
