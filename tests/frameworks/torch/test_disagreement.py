"""Ranks call different things: every rank gets an error that says who called what.

Under Gloo these end the process, hang, or return garbage.
"""

from __future__ import annotations

import importlib.util
import re

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.fault_ranks import Outcome, Ranks, within

LARGE = 8 << 20


def _x(count=8, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)


def _sum(x, **kwargs):
    return dist.all_reduce(x, **kwargs)


def _blocks(call, out, ins, **kwargs):
    world = dist.get_world_size()
    getattr(dist, call)(torch.ones(out * world), torch.ones(ins * world), **kwargs)


def _several(call, *lengths):
    """An operation of several tensors at once."""
    world = dist.get_world_size()
    short, long = [_x(n) for n in lengths], [_x(n * world) for n in lengths]
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    if call == "all_reduce_coalesced":
        dist.all_reduce_coalesced(short)
    elif call == "all_gather_coalesced":
        group.allgather_coalesced([[_x(n) for n in lengths] for _ in range(world)], short).wait()
    elif call == "all_gather_into_tensor_coalesced":
        dist.group.WORLD.allgather_into_tensor_coalesced(long, short).wait()
    else:
        dist.group.WORLD.reduce_scatter_tensor_coalesced(short, long).wait()


# What all ranks but the last call, what the last one calls, and what the text must say of the two.
MISMATCHES = {
    "dtype": (lambda: _sum(_x()), lambda: _sum(_x(dtype=torch.int32)), "float32[8]", "int32[8]"),
    "same bytes": (lambda: _sum(_x()), lambda: _sum(_x(4, torch.float64)), "float32[8]", "float64[4]"),
    "op": (lambda: _sum(_x()), lambda: _sum(_x(), op=dist.ReduceOp.MAX), "sum", "max"),
    "shape": (lambda: _sum(_x()), lambda: _sum(_x(9)), "[8]", "[9]"),
    "large shape": (lambda: _sum(_x(LARGE)), lambda: _sum(_x(LARGE + 1)), f"[{LARGE}]", f"[{LARGE + 1}]"),
    "collective": (lambda: _sum(_x()), lambda: dist.broadcast(_x(), 0), "all_reduce(", "broadcast("),
    "root": (lambda: dist.broadcast(_x(), 0), lambda: dist.broadcast(_x(), 1), "root 0", "root 1"),
    "barrier": (lambda: dist.barrier(), lambda: _sum(_x()), "barrier(", "all_reduce("),
    "gather and scatter": (
        lambda: dist.reduce_scatter_tensor(_x(), _x(8 * dist.get_world_size())),
        lambda: dist.all_gather_into_tensor(_x(8 * dist.get_world_size()), _x()),
        "reduce_scatter", "all_gather",
    ),
    **{
        f"{call} of {usual} and {odd}": (
            lambda call=call, usual=usual: _several(call, *usual), lambda call=call, odd=odd: _several(call, *odd),
            f"of {len(usual)} tensors, lengths #" if len(usual) > 1 else ") by",
            f"of {len(odd)} tensors, lengths #" if len(odd) > 1 else ") by",
        )
        for call, usual, odd in [
            ("all_reduce_coalesced", (8, 4), (4, 8)),
            ("all_reduce_coalesced", (8, 4), (12,)),
            ("all_reduce_coalesced", (6, 6), (4, 4, 4)),
            ("all_reduce_coalesced", (LARGE, 4), (LARGE, 2, 2)),
            ("all_gather_coalesced", (8, 4), (8, 2, 2)),
            ("all_gather_into_tensor_coalesced", (8, 4), (8, 2, 2)),
            ("reduce_scatter_tensor_coalesced", (8, 4), (8, 2, 2)),
        ]
    },
}  # fmt: skip


def _disagree(note, case, background):
    usual, odd, _, _ = MISMATCHES[case]
    _sum(_x(5))
    call = odd if dist.get_rank() == dist.get_world_size() - 1 else usual
    note()
    if background:
        _in_background(call)
    else:
        call()
    dist.barrier()  # a rank that could finish, because the others needed nothing of it, learns at its next call


def _in_background(call):
    """With every collective asynchronous."""
    works, really = [], dist.all_reduce
    dist.all_reduce = lambda x, **kwargs: works.append(really(x, async_op=True, **kwargs))
    try:
        call()
        for work in works:
            work.wait()
    finally:
        dist.all_reduce = really


def _calls_named(outcome: Outcome) -> dict[int, str]:
    """What the text says of each rank's call."""
    found = re.findall(r"rank (\d+): (.*?)(?:;|$)", outcome.text, re.MULTILINE)
    return {int(rank): call for rank, call in found}


def _assert_mismatch(ranks: Ranks, usual: str, odd: str) -> None:
    found = ranks.outcomes()
    began = max(ranks.notes)
    for rank, outcome in enumerate(found):
        assert outcome is not None, f"rank {rank} died"
        assert outcome.kind, f"rank {rank} raised nothing"
        assert outcome.at - began < within(), f"rank {rank} needed {outcome.at - began:.2f} s"
        calls = _calls_named(outcome)
        others = [calls[other] for other in range(len(found) - 1) if other in calls]
        assert any(usual in call for call in others), outcome.text
        # A third rank may still fill its tensors when two have noticed.
        assert all(usual in call or call == "has not made this call" for call in others), outcome.text
        assert odd in calls[len(found) - 1], outcome.text


@pytest.mark.parametrize("case", MISMATCHES)
@pytest.mark.parametrize("count", [2, 3])
def test_mismatch(case, count, tmp_path):
    _assert_mismatch(Ranks(tmp_path, _disagree, count, case, False), *MISMATCHES[case][2:])


@pytest.mark.parametrize("case", ["dtype", "shape", "op"])
def test_mismatch_of_asynchronous_calls(case, tmp_path):
    _assert_mismatch(Ranks(tmp_path, _disagree, 3, case, True), *MISMATCHES[case][2:])


def _skip(note):
    _sum(_x(5))
    note()
    if dist.get_rank() != 1:
        dist.broadcast(_x(), 2)
    for count in range(1, 100):
        _sum(_x(count))


@pytest.mark.parametrize("count", [3, 4])
def test_a_rank_that_skips_a_call(count, tmp_path):
    for outcome in Ranks(tmp_path, _skip, count).outcomes():
        assert outcome is not None and outcome.kind, outcome
        calls = _calls_named(outcome)
        assert "broadcast(" in calls[0], outcome.text
        assert "all_reduce(" in calls[1], outcome.text


def _refuse(note):
    """Wrong arguments are this rank's own affair: they raise, and the group goes on."""
    errors = []
    for bad in (
        lambda: dist.all_gather_into_tensor(_x(3), _x(2)),
        lambda: dist.reduce_scatter_tensor(_x(3), _x(2)),
        lambda: dist.all_to_all_single(_x(4), _x(4), [1] * 7, [1] * 7),
        lambda: dist.all_reduce(_x(), op=dist.ReduceOp.BAND),
    ):
        try:
            bad()
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))
    x = _x()
    _sum(x)
    return errors, x.tolist()


def test_bad_arguments_leave_the_group_usable(tmp_path):
    for outcome in Ranks(tmp_path, _refuse, 2).outcomes():
        assert outcome is not None and outcome.value, outcome
        errors, total = outcome.value
        assert len(errors) == 4, errors
        assert total == [2.0] * 8
