"""What the arguments of the training classes cannot be: the error names them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ringreduce

torch = pytest.importorskip("torch")

from ringreduce import elastic  # noqa: E402


class Odd:
    """An object of none of the kinds that are asked for."""


ARRAY = np.ones(2)
NO_COMM = ["world", [1], 1, ARRAY, Odd()]
NO_NUMBER = ["1", [1], True, ARRAY, Odd()]
NO_SIZE = [*NO_NUMBER, None, 0, -1, float("nan")]
NO_INTEGER = [*NO_NUMBER, 1.5, float("nan"), -1]
NO_FLAG = [0, 1, "yes", 1.5, None, ARRAY, Odd()]
NO_WIRE = ["fp4", 5, [1], ARRAY, Odd()]
NO_MODULE = [None, "model", 5, [], ARRAY, Odd()]
NO_CLASS = [None, "SGD", 5, torch.nn.Linear, ARRAY, Odd()]


def net():
    return torch.nn.Linear(4, 2)


def parallel(comm, argument, value):
    ringreduce.DataParallel(**{"module": net(), "comm": comm, argument: value})


def sharded(comm, argument, value):
    own = {"params": net().parameters(), "optimizer_class": torch.optim.SGD, "comm": comm, "lr": 0.1}
    ringreduce.ShardedOptimizer(**{**own, argument: value})


def served(comm, argument, value):
    own = {"model": net(), "optimizer": torch.optim.SGD, "comm": comm, "lr": 0.1, "staleness": 1}
    ringreduce.ParameterServer(**{**own, argument: value})


def stepped(comm, argument, value):
    own = {"state": elastic.State(comm, model=net()), "count": 1}
    next(elastic.steps(**{**own, argument: value}))


def balanced(comm, argument, value):
    from ringreduce.balance import Balance

    Balance(**{"comm": comm, "batch": 8, argument: value})


def averaged(comm, argument, value):
    from ringreduce.low_communication import LocalSGD

    LocalSGD(**{"parameters": net().parameters(), "comm": comm, "every": 2, argument: value})


ARGUMENTS = [
    (parallel, 1, {
        "module": NO_MODULE, "comm": NO_COMM, "bucket_mb": NO_SIZE, "first_bucket_mb": NO_SIZE,
        "find_unused_parameters": NO_FLAG, "static_graph": NO_FLAG, "broadcast_buffers": NO_FLAG,
        "gradient_as_bucket_view": NO_FLAG, "wire": NO_WIRE, "logical_shards": [*NO_INTEGER, 0],
    }),
    (sharded, 1, {
        "params": [None, 5, 1.5, Odd()], "optimizer_class": NO_CLASS, "comm": NO_COMM, "stage": [*NO_INTEGER, 0, 3],
        "shard": ["rows", 5, ARRAY, Odd()], "bucket_mb": NO_SIZE, "copies": NO_INTEGER,
    }),
    (served, 2, {
        "model": NO_MODULE, "optimizer": NO_CLASS, "comm": NO_COMM, "groups": ["x", [1], 5, ARRAY, Odd()],
        "staleness": NO_INTEGER, "servers": [*NO_INTEGER, 0, 2], "copies": NO_FLAG[:4] + NO_FLAG[5:],
        "overlap": NO_FLAG, "delay_compensation": [*NO_NUMBER, -1, float("nan"), float("inf")],
        "compensation_decay": [*NO_NUMBER, 0.5, float("nan")],
    }),
    (stepped, 1, {
        "state": [None, "state", 5, ARRAY, Odd()], "count": [*NO_INTEGER, None], "minimum": [*NO_INTEGER, None, 0],
        "timeout": NO_SIZE, "checkpoints": ["folder", 5, ARRAY, Odd()],
    }),
    (balanced, 1, {
        "comm": NO_COMM, "batch": [*NO_INTEGER, None, 0], "every": [*NO_INTEGER, None, 0], "ahead": [*NO_INTEGER, None],
        "smallest": [*NO_INTEGER, None, 0], "tolerance": [*NO_NUMBER, None, -1, 1, float("nan")],
    }),
    (averaged, 1, {"comm": NO_COMM, "every": [*NO_INTEGER, None, 0]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "ranks", "argument", "bad"),
    [
        pytest.param(make, ranks, argument, bad, id=f"{make.__name__} {argument}")
        for make, ranks, rows in ARGUMENTS
        for argument, bad in rows.items()
    ],
)
def test_what_an_argument_cannot_be(make, ranks, argument, bad):
    comm = ringreduce.local_group(ranks, timeout=30.0)[0]
    wrong = []
    for value in bad:
        try:
            make(comm, argument, value)
        except (TypeError, ValueError) as error:
            if not re.search(rf"\b{argument}\b", str(error)):
                wrong.append(f"{value!r}: {error}")
        except BaseException as error:
            wrong.append(f"{value!r}: {error!r}")
        else:
            wrong.append(f"{value!r} is accepted")
    assert not wrong, "\n".join(wrong)
