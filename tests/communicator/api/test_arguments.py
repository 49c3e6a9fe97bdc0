"""Bad arguments raise at once, name the argument, and leave the communicator usable."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_group, on_threads

F = np.float32


def x(count=4, dtype=F):
    return np.ones(count, dtype)


BAD = {
    "count of out": (ValueError, "out has 5", lambda c: c.all_reduce(x(), out=x(5))),
    "dtype of out": (
        ValueError,
        "x has dtype float32, but out has float64",
        lambda c: c.all_reduce(x(), out=x(4, float)),
    ),
    "dtype": (TypeError, "x has dtype", lambda c: c.all_reduce(x(4, "longdouble"))),
    "no array": (TypeError, "x must be an array", lambda c: c.all_reduce({})),
    "op": (ValueError, "op must be one of", lambda c: c.all_reduce(x(), "plus")),
    "op of reduce_scatter": (ValueError, "op must be one of", lambda c: c.reduce_scatter(x(), "plus")),
    "op that is no name": (TypeError, "op must be a string, not int", lambda c: c.all_reduce(x(), 3)),
    "op for dtype": (
        ValueError,
        "op 'band' is not defined for dtype float32",
        lambda c: c.all_reduce(x(), "band"),
    ),
    "factor with op": (
        ValueError,
        "factor can only be used with op 'sum'",
        lambda c: c.all_reduce(x(), "max", factor=2.0),
    ),
    "factor with avg": (
        ValueError,
        "factor can only be used with op 'sum'",
        lambda c: c.reduce(x(), 0, "avg", factor=2.0),
    ),
    "factor of integers": (ValueError, "int32", lambda c: c.all_reduce(x(4, "int32"), factor=2.0)),
    "algorithm": (ValueError, "algorithm must be", lambda c: c.all_reduce(x(), algorithm="rings")),
    "algorithm of another": (ValueError, "algorithm must be", lambda c: c.broadcast(x(), algorithm="swing")),
    "root": (ValueError, "root must be", lambda c: c.broadcast(x(), 2)),
    "root of reduce": (ValueError, "root must be", lambda c: c.reduce(x(), -1)),
    "root of gather": (ValueError, "root must be", lambda c: c.gather(x(), 2)),
    "root of scatter": (ValueError, "root must be", lambda c: c.scatter(x(), 2, out=x(2))),
    "rows of reduce_scatter": (ValueError, "not divi", lambda c: c.reduce_scatter(x(5))),
    "rows of all_to_all": (ValueError, "not divi", lambda c: c.all_to_all(x(5))),
    "out of all_gather": (ValueError, "out has 7", lambda c: c.all_gather(x(), out=x(7))),
    "out of reduce_scatter": (ValueError, "out has 3", lambda c: c.reduce_scatter(x(), out=x(3))),
    "timeout": (ValueError, "timeout must be positive", lambda c: c.all_reduce(x(), timeout=0)),
    "timeout below zero": (ValueError, "timeout must be positive", lambda c: c.barrier(timeout=-1)),
    "overlap": (ValueError, "overlap", lambda c: (lambda a: c.all_reduce(a[:5], out=a[1:6]))(x(6))),
    "dest": (ValueError, "dest must be a rank from 0 to 1, not 2", lambda c: c.send(x(), 2)),
    "source": (ValueError, "source must be None or a rank", lambda c: c.recv(x(), -1)),
    "tag": (
        ValueError,
        "tag must be an integer from -2147483648 to 2147483647, not 2147483648",
        lambda c: c.send(x(), 0, tag=1 << 31),
    ),
    "color": (ValueError, "color", lambda c: c.split(-2)),
    "explain": (ValueError, "no collective is called 'all_produce'", lambda c: c.explain(8, "all_produce")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(what):
    kind, message, call = BAD[what]

    def rank_main(comm):
        with pytest.raises(kind, match=message):
            call(comm)
        # One rank's mistake does not disturb a call that all make.
        if comm.rank == 0:
            with pytest.raises(kind, match=message):
                call(comm)
        assert (comm.all_reduce(x()) == 2).all()

    on_threads(2, rank_main)


class Odd:
    """An object of none of the kinds that are asked for."""


NO_NUMBERS = ["1", b"1", Odd(), [1], float, 1j, True]
NO_INTEGERS = [*NO_NUMBERS, 1.5, 1.0, np.float32(1), np.nan, np.ones(2, int)]
NO_RANKS = [*NO_INTEGERS, np.ones((1, 1)), -1, 2, 1 << 31, -(1 << 63), 1 << 64]
NO_TEXT = [5, 1.5, True, b"sum", ["sum"], Odd()]
BAD_TEXT = ["", "no such", "sum\0", "\udcff", "ring\0", "é"]
NO_TIMEOUT = [*NO_NUMBERS, 0, -1, -0.5, np.nan, -np.inf, -(10**400)]
NO_FLAG = [0, 1, "yes", None, 1.5, np.True_, Odd()]
NO_COUNTS = [
    5, "11", Odd(), [1], [2, 2, 0], [1.5, 2.5], [2.0, 2.0], ["2", "2"], [None, 4], [-1, 5], [True, 3], [np.nan, 1],
    [1 << 64, 0], [1 << 62, 2], np.array([2.0, 2.0]), np.ones((2, 2), int),
]  # fmt: skip
NO_ARRAY = [None, 5, 1.5, "text", {}, [1.0], Odd(), np.array(["a"]), np.ones(2, object)]
NO_DEVICES = ["0", b"01", 1.5, Odd(), -1, 1 << 31, [0], [0, 1.5], [0, -1], [0, 1 << 64], True]
NO_SHAPES = [None, "1", b"1", Odd(), 1.5, np.nan, True, -1, (2, -1), (2, 1.5), "23", 1 << 62, (1 << 40,) * 3]
WRONG_SUMS = [[1, 1], [3, 3], [0, 0], [4, 1]]  # of x's four rows, or of this rank's own
NO_STREAM = [-1, True, 1.5, "0", Odd(), 1 << 70, 7]  # of arrays in the CPU's memory none is right

INTEGERS = ["int8", "uint8", "int32", "int64", "bool"]
NO_STORES = [5, 1.5, "\udcff", "a\0", "", "tcp://x", "tcp://h:0", "tcp://h:99999", "tcp://h h:80"]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
COLLECTIVES = (*ROOTED, "all_reduce", "reduce_scatter", "all_gather", "all_to_all")
TIMED = (*COLLECTIVES, "send", "recv", "barrier")


def called(comm, name, **given):
    """The collective or message with these arguments, and others that are right."""
    right = {"barrier": {}, "send": {"dest": 0}, "scatter": {"out": x(2)}}.get(name, {})
    x_too = {} if name == "barrier" else {"x": x()}
    return getattr(comm, name)(**{**x_too, **right, **given})


def of(names, argument, bad, what=""):
    return [
        (
            argument,
            lambda c, v, name=name: called(c, name, **{argument: v}),
            bad,
            f"{name} {argument}{what and ' ' + what}",
        )
        for name in names
    ]


# The argument's name, a call with its value, values that it cannot be, and if need be a name for the test.
ARGUMENTS = [
    *of(TIMED, "timeout", NO_TIMEOUT),
    *of(TIMED, "async_op", NO_FLAG),
    *of(ROOTED, "root", [None, *NO_RANKS]),
    *of(REDUCING, "op", [None, *NO_TEXT, *BAD_TEXT]),
    *of(REDUCING, "factor", NO_NUMBERS),
    *of(COLLECTIVES, "algorithm", [None, 5, 1.5, True, ["ring"], Odd(), *BAD_TEXT]),
    *of(COLLECTIVES, "wire", [*NO_TEXT, *BAD_TEXT]),
    *of(COLLECTIVES, "stream", NO_STREAM),
    *of(("reduce_scatter", "all_gather", "gather", "scatter"), "counts", NO_COUNTS),
    *of(("all_gather", "gather"), "counts", [[0, 0], [3, 1], [5, 4]], "with a wrong sum"),
    *of(("reduce_scatter",), "counts", WRONG_SUMS, "with a wrong sum"),
    ("counts", lambda c, v: c.scatter(x(), counts=v), WRONG_SUMS, "scatter counts with a wrong sum"),
    (
        "send_counts",
        lambda c, v: c.all_to_all(x(), send_counts=v, recv_counts=v),
        WRONG_SUMS,
        "send_counts with a wrong sum",
    ),
    (
        "recv_counts",
        lambda c, v: c.all_to_all(x(), out=x(4), send_counts=[2, 2], recv_counts=v),
        [[2, 1], [2, 3], [2, 0]],
        "recv_counts with a wrong sum",
    ),
    *[
        (
            "factor",
            lambda c, v, name=name: called(c, name, x=x(4, v), factor=2),
            INTEGERS,
            f"{name} factor of integers",
        )
        for name in REDUCING
    ],
    *of(("send",), "dest", [None, *NO_RANKS]),
    *of(("recv",), "source", NO_RANKS),
    *of(("send", "recv"), "tag", [None, *NO_INTEGERS, 1 << 31, -(1 << 31) - 1, 1 << 64]),
    *of([name for name in TIMED if name not in ("scatter", "barrier")], "x", NO_ARRAY),
    *of(("all_reduce", "reduce_scatter", "all_gather", "all_to_all"), "out", NO_ARRAY[1:]),
    *of(("register", "deregister"), "x", [*NO_ARRAY, x()]),
    ("send_counts", lambda c, v: c.all_to_all(x(), send_counts=v, recv_counts=[2, 2]), NO_COUNTS),
    ("recv_counts", lambda c, v: c.all_to_all(x(), send_counts=[2, 2], recv_counts=v), NO_COUNTS),
    ("color", lambda c, v: c.split(v), [*NO_INTEGERS, -1, -2, 1 << 31, 1 << 64]),
    ("key", lambda c, v: c.split(0, v), [*NO_INTEGERS, 1 << 31, -(1 << 64)]),
    ("nbytes", lambda c, v: c.explain(v), [None, *NO_INTEGERS, -1, 1 << 64]),
    ("collective", lambda c, v: c.explain(8, v), [None, *NO_TEXT, *BAD_TEXT]),
    ("wire", lambda c, v: c.explain(8, wire=v), [*NO_TEXT, *BAD_TEXT], "explain wire"),
    ("size", lambda c, v: ringreduce.local_group(v), [None, *NO_INTEGERS, 0, 1 << 31], "local_group size"),
    (
        "timeout",
        lambda c, v: ringreduce.local_group(1, timeout=v),
        [None, *NO_TIMEOUT],
        "local_group timeout",
    ),
    (
        "reproducible",
        lambda c, v: ringreduce.local_group(1, reproducible=v),
        [0, "yes"],
        "local_group reproducible",
    ),
    (
        "timeout",
        lambda c, v: c.send(x(), 0, async_op=True).wait(v),
        [*NO_NUMBERS, -1, np.nan],
        "wait timeout",
    ),
    ("device", lambda c, v: ringreduce.local_group(2, device=v), NO_DEVICES),
    ("timeout", lambda c, v: ringreduce.init(0, 1, timeout=v), [None, *NO_TIMEOUT], "init timeout"),
    ("rank", lambda c, v: ringreduce.init(v, 2, "name"), NO_RANKS, "init rank"),
    ("size", lambda c, v: ringreduce.init(0, v, "name"), [*NO_INTEGERS, 0, -1, 1 << 31], "init size"),
    ("store", lambda c, v: ringreduce.init(0, 2, v), [*NO_STORES, Odd()], "init store"),
    ("encrypt", lambda c, v: ringreduce.init(0, 1, encrypt=v), [0, 1, "yes", np.True_], "init encrypt"),
    ("store", lambda c, v: ringreduce.join(v, timeout=1), [*NO_STORES, Odd(), print], "join store"),
    ("timeout", lambda c, v: ringreduce.join("name", timeout=v), [None, *NO_TIMEOUT], "join timeout"),
    ("encrypt", lambda c, v: ringreduce.join("name", encrypt=v), [0, 1, "yes", np.True_], "join encrypt"),
    ("reproducible", lambda c, v: ringreduce.join("name", reproducible=v), [0, "yes"], "join reproducible"),
    (
        "transport",
        lambda c, v: ringreduce.join("name", transport=v),
        [*NO_TEXT, *BAD_TEXT[1:]],
        "join transport",
    ),
    ("fingerprint", lambda c, v: ringreduce.join("name", fingerprint=v), [5, 1.5, [1], Odd()]),
    (
        "transport",
        lambda c, v: ringreduce.init(0, 1, transport=v),
        [*NO_TEXT, *BAD_TEXT[1:]],
        "init transport",
    ),
    ("reproducible", lambda c, v: ringreduce.init(0, 1, reproducible=v), [0, 1, "yes", np.True_]),
    ("function", lambda c, v: ringreduce.run(v, 1), [None, 5, "print"], "run function"),
    ("ranks", lambda c, v: ringreduce.run(print, v), [None, *NO_INTEGERS, 0, -1], "run ranks"),
    ("timeout", lambda c, v: ringreduce.run(print, 1, timeout=v), [None, *NO_TIMEOUT], "run timeout"),
    ("grace", lambda c, v: ringreduce.run(print, 1, grace=v), [*NO_NUMBERS, -1, np.nan], "run grace"),
    ("start", lambda c, v: ringreduce.run(print, 1, start=v), [None, 5, "", "forkserver"], "run start"),
    ("transport", lambda c, v: ringreduce.run(print, 1, transport=v), NO_TEXT, "run transport"),
    ("reproducible", lambda c, v: ringreduce.run(print, 1, reproducible=v), [0, "yes"], "run reproducible"),
    ("shape", lambda c, v: ringreduce.empty(v), NO_SHAPES),
    (
        "dtype",
        lambda c, v: ringreduce.zeros(2, v),
        [None, 5, "float33", object, "O", Odd(), "\udcff", b"f4\0"],
    ),
    (
        "world",
        lambda c, v: ringreduce.schedule("all_reduce", "ring", v, 0),
        [None, *NO_INTEGERS, 0, -1, 1 << 64],
    ),
    (
        "rank",
        lambda c, v: ringreduce.schedule("all_reduce", "ring", 2, v),
        [None, *NO_RANKS],
        "schedule rank",
    ),
    (
        "root",
        lambda c, v: ringreduce.schedule("broadcast", "tree", 2, 0, v),
        [None, *NO_RANKS],
        "schedule root",
    ),
    ("algorithm", lambda c, v: ringreduce.schedule("all_reduce", v, 2, 0), [None, *NO_TEXT, *BAD_TEXT]),
    ("collective", lambda c, v: ringreduce.schedule(v, "ring", 2, 0), [None, *NO_TEXT, *BAD_TEXT]),
    ("world", lambda c, v: ringreduce.algorithms("all_reduce", v), [*NO_INTEGERS, 0, -1], "algorithms world"),
    ("world", lambda c, v: ringreduce.check(print, v), [None, *NO_INTEGERS, 0], "check world"),
    ("name", lambda c, v: ringreduce.register(v, print), [None, *NO_TEXT, "\udcff", "a\0"]),
    ("function", lambda c, v: ringreduce.register("mine", v), [None, 5, "ring"], "register function"),
]


@pytest.mark.parametrize(("argument", "call", "bad"), [
    pytest.param(*row[:3], id=row[3] if row[3:] else row[0]) for row in ARGUMENTS
])  # fmt: skip
def test_what_an_argument_cannot_be(argument, call, bad):
    """Whatever is given, the error names the argument, shows nothing of the bindings, and the group goes on."""
    comms = ringreduce.local_group(2, timeout=30.0)
    wrong = []
    for value in bad:
        try:
            call(comms[0], value)
        except (TypeError, ValueError) as error:
            if not re.search(rf"\b{argument}\b", str(error)) or "incompatible function" in str(error):
                wrong.append(f"{value!a}: {error}")
        except BaseException as error:
            wrong.append(f"{value!a}: {error!r}")
        else:
            wrong.append(f"{value!a} is accepted")
    assert not wrong, "\n".join(wrong)
    assert on_group(comms, lambda comm: comm.all_reduce(x())[0]) == [2, 2]
    for comm in comms:
        comm.close()


def test_what_arguments_may_be():
    """Whatever has the meaning of an integer or of a number."""

    def rank_main(comm):
        one = np.int64(1)
        comm.broadcast(x(), np.array(1), timeout=np.float32(9), async_op=False)
        comm.all_reduce(x(), factor=np.float64(2), timeout=np.int8(9))
        comm.all_reduce(x(), factor=2, timeout=float("inf"))
        comm.all_gather(x(2), counts=np.array([2, 2]))
        comm.all_gather(x(1 + comm.rank), counts=(one, np.uint8(2)))
        comm.send(x(), np.int32(comm.rank), tag=np.int64(-(1 << 31)))
        comm.recv(x(), comm.rank, tag=-(1 << 31))
        comm.split(one, -one).close()
        assert ringreduce.empty(np.array([2, 3])).shape == ringreduce.empty([np.int8(2), 3]).shape == (2, 3)

    on_threads(2, rank_main)


def test_names_that_are_cut_within_a_character():
    """Errors show algorithms' names of other ranks, of which they know the beginning."""

    def ring(world, rank):
        return ringreduce.schedule("all_reduce", "ring", world, rank)

    for length in range(30):
        ring.__name__ = "a" * length + "é" * 20

        def rank_main(comm):
            with pytest.raises(ringreduce.MismatchError, match=r"by a*é*"):
                if comm.rank:
                    comm.all_reduce(x())
                comm.all_reduce(x(), algorithm=ring)
                comm.barrier()

        on_threads(2, rank_main)


def test_scatter_says_what_each_rank_needs():
    def rank_main(comm):
        with pytest.raises(
            ValueError, match="x is required on the root" if comm.rank == 0 else "out is required"
        ):
            comm.scatter(None)
        comm.barrier()

    on_threads(2, rank_main)


def test_groups_and_launches():
    for call in (lambda: ringreduce.local_group(0), lambda: ringreduce.run(print, 0)):
        with pytest.raises(ValueError, match=r"must be an integer (from|of at least) 1"):
            call()
    with pytest.raises(ValueError, match="give both rank and size"):
        ringreduce.init(rank=0)
    with pytest.raises(ValueError, match="rank must be"):
        ringreduce.init(3, 2, "name")
    with pytest.raises(ValueError, match="store is required"):
        ringreduce.init(0, 2)
    with pytest.raises(ValueError, match="timeout must be positive"):
        ringreduce.init(0, 1, timeout=0)
    with pytest.raises(TypeError, match="store must be"):
        ringreduce.init(0, 2, 17)


def test_arrays():
    with pytest.raises(TypeError):
        ringreduce.empty(3, "float33")
    with pytest.raises(ValueError):
        ringreduce.empty(-3)
    assert ringreduce.empty((2, 0)).shape == (2, 0) and ringreduce.empty(()).shape == ()


def test_schedules():
    with pytest.raises(ValueError, match="no collective"):
        ringreduce.algorithms("all_produce")
    with pytest.raises(ValueError, match="rings"):
        ringreduce.schedule("all_reduce", "rings", 4, 0)
    with pytest.raises(ValueError, match="already"):
        ringreduce.register("ring", lambda world, rank: None)


def test_use_after_close():
    def rank_main(comm):
        comm.close()
        comm.close()
        for call in (
            lambda: comm.all_reduce(x()),
            comm.barrier,
            lambda: comm.split(0),
            lambda: comm.send(x(), 1 - comm.rank),
        ):
            with pytest.raises(ringreduce.ClosedError):
                call()

    on_threads(2, rank_main)
