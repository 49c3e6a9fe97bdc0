"""The thread that exchanges buckets: overlap, failures that reach the training thread, and its end."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import textwrap
import threading
import time

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

import ringreduce
from ringreduce import compression
from ringreduce.compression import Int8Blocks, TopK
from tests.conftest import on_group, slowly
from tests.training.buckets import FakeBucket, Ranks, normal


def bucket(count=1000, last=True):
    parameter = torch.zeros(count)
    return FakeBucket([torch.ones(count)], [parameter], last=last)


def threads_of(method):
    return [thread for thread in threading.enumerate() if thread.name == method.__name__]


def test_the_hook_does_not_wait_for_the_other_ranks():
    ranks = Ranks(2, Int8Blocks, [(1000,)])
    futures = [compression.hook(ranks.states[0], bucket(last=last)) for last in (False, True)]
    time.sleep(0.05)
    assert not any(future.done() for future in futures)
    others = [compression.hook(ranks.states[1], bucket(last=last)) for last in (False, True)]
    for future in futures + others:
        assert torch.allclose(future.wait(), torch.ones(1000))


def test_a_peers_end_is_the_futures_exception_and_that_of_all_later_ones():
    ranks = Ranks(2, Int8Blocks, [(1000,)])
    first = compression.hook(ranks.states[0], bucket())
    ranks.states[1].close()
    with pytest.raises(ringreduce.PeerLost):
        first.wait()
    with pytest.raises(ringreduce.PeerLost):
        compression.hook(ranks.states[0], bucket()).wait()


def test_a_rank_that_does_not_come_is_a_timeout():
    states = on_group(ringreduce.local_group(2, timeout=0.3), Int8Blocks)
    with pytest.raises(ringreduce.TimeoutError, match="rank 1"):
        compression.hook(states[0], bucket()).wait()


def test_ranks_with_different_settings_learn_of_it():
    comms = ringreduce.local_group(2, timeout=10)
    states = on_group(comms, lambda comm: TopK(comm, fraction=0.1 * (1 + comm.rank)))
    futures = [compression.hook(state, bucket()) for state in states]
    for future in futures:
        with pytest.raises(ringreduce.MismatchError):
            future.wait()


def test_a_closed_state_refuses_work():
    ranks = Ranks(1, Int8Blocks, [(10,)])
    assert len(threads_of(Int8Blocks)) >= 1
    ranks.states[0].close()
    ranks.states[0].close()
    with pytest.raises(ValueError, match="this Int8Blocks is closed"):
        compression.hook(ranks.states[0], bucket(10))


def test_a_closed_state_can_still_be_saved():
    """Its thread, which state_dict() waits for, is gone."""
    ranks = Ranks(2, TopK, [(10,)])
    ranks.step([normal(rank, 10) for rank in range(2)])
    open_ones = [state.state_dict() for state in ranks.states]
    for state in ranks.states:
        state.close()
    for state, before in zip(ranks.states, open_ones, strict=True):
        saved = on_group([state], TopK.state_dict, patience=10)[0]
        assert torch.equal(saved["memory"]["unsent"][0], before["memory"]["unsent"][0])


def test_exchanges_of_a_lost_step_do_not_meet_those_of_the_next_group():
    """Rank 0 has begun three exchanges that rank 1 never will, when both continue in another group."""
    comms = ringreduce.local_group(2, timeout=60)
    states = on_group(comms, Int8Blocks)
    lost = [compression.hook(states[0], bucket()) for _ in range(3)]
    others = on_group(comms, lambda comm: comm.split(0))

    def go_on(number_and_comm):
        number, comm = number_and_comm
        states[number].regroup(comm)
        return compression.hook(states[number], bucket()).wait()

    for found in on_group([*enumerate(others)], go_on, patience=30):
        torch.testing.assert_close(found, bucket().buffer(), rtol=0.01, atol=0.0)  # int8
    for future in lost:
        with pytest.raises(ringreduce.Error):
            future.wait()


def test_the_thread_goes_with_the_state():
    gc.collect()
    before = len(threads_of(TopK))
    ranks = Ranks(2, TopK, [(10,)])
    ranks.step([normal(rank, 10) for rank in range(2)])
    assert len(threads_of(TopK)) == before + 2
    del ranks
    gc.collect()
    until = time.monotonic() + 10
    while len(threads_of(TopK)) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(threads_of(TopK)) == before


PROGRAM = """
import threading, torch, ringreduce
from ringreduce import compression
from tests.training.buckets import FakeBucket, Ranks
ranks = Ranks(2, compression.Int8Blocks, [(10,)], timeout=300)
ones = torch.ones(10)
"""
ENDS = {
    "at rest": ("ranks.step([ones, ones])", 0),
    "after a close": ("ranks.step([ones, ones]); [state.close() for state in ranks.states]", 0),
    "an error with a collective under way": (
        "compression.hook(ranks.states[0], FakeBucket([ones], [ones])); raise SystemError('over')",
        1,
    ),
}


@pytest.mark.parametrize("how", [*slowly("at rest", "after a close"), "an error with a collective under way"])
def test_the_interpreter_ends_soon(how):
    """Even where a peer never comes: long before the group's timeout of 300 s."""
    statement, status = ENDS[how]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM) + statement],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == status, done.stderr
    assert ("SystemError: over" in done.stderr) == bool(status)
