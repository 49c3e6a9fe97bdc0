"""A rank that dies, leaves or never submits: the others learn it, and never hang."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks, outcomes  # noqa: E402


def failure_of(call):
    """What a call raises, at the latest at one of its repetitions."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            call()
        except hvd.HorovodInternalError as error:
            return str(error)
    return "nothing failed"


def one_dies(kind):
    calls = {
        "blocking": lambda: hvd.allreduce(torch.ones(4), name="x"),
        "async": lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(4), name="x")),
        "join": hvd.join,
        "large": lambda: hvd.allreduce(torch.ones(1 << 20), name="x"),
    }
    hvd.allreduce(torch.ones(4), name="x")
    if hvd.rank() == 1:
        if kind == "large":
            hvd.allreduce_async(torch.ones(1 << 20), name="x")
        os.kill(os.getpid(), signal.SIGKILL)
    handle = hvd.allreduce_async(torch.ones(2), name="another")
    found = [failure_of(calls[kind]), failure_of(lambda: hvd.synchronize(handle))]
    return [*found, failure_of(lambda: hvd.broadcast(torch.ones(1), 0))]


@pytest.mark.parametrize("kind", ["blocking", "async", "join", "large"])
def test_a_rank_is_killed(kind):
    found = outcomes(3, one_dies, kind)
    assert found[1] is None
    for rank in (0, 2):
        assert len(found[rank]) == 3
        for text in found[rank]:
            assert "PeerLost: " in text
            assert "rank 1" in text


def one_leaves():
    hvd.allreduce(torch.ones(4), name="x")
    if hvd.rank() == 1:
        return hvd.shutdown()
    return failure_of(lambda: hvd.allreduce(torch.ones(4), name="x"))


def test_a_rank_leaves():
    first, left = on_ranks(2, one_leaves)
    assert left is None
    assert "PeerLost" in first


def shut_down_meanwhile():
    handle = hvd.allreduce_async(torch.ones(4), name="x") if hvd.rank() == 0 else None
    time.sleep(0.1)  # the background waits for rank 1
    hvd.shutdown()
    return handle and failure_of(lambda: hvd.synchronize(handle))


def test_shutdown_ends_what_is_under_way():
    found, _ = on_ranks(2, shut_down_meanwhile)
    assert "hvd.shutdown()" in found


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def but_for_go(texts):
    """Rank 1 waits in this broadcast meanwhile, which may be reported too."""
    return [text for text in texts if "'broadcast.go'" not in text]


def stalling():
    lines = Lines()
    logging.getLogger("ringreduce.horovod").addHandler(lines)
    if hvd.rank() == 1:
        other = hvd.allreduce_async(torch.ones(1), name="other")
        # Leaves when rank 0 has warned, which submits another tensor then.
        hvd.broadcast(torch.ones(1), 0, name="go")
        found = hvd.allreduce(torch.ones(2), name="late", op=hvd.Sum)
    else:
        late = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
        if hvd.rank() == 0:
            until = time.monotonic() + 30
            while len(but_for_go(lines.texts)) < 2 and time.monotonic() < until:
                time.sleep(0.01)
        hvd.broadcast(torch.ones(1), 0, name="go")
        other, found = hvd.allreduce_async(torch.ones(1), name="other"), hvd.synchronize(late)
    hvd.synchronize(other)
    return sorted(lines.texts), found.tolist()


def test_a_stall_is_reported_with_the_missing_ranks():
    texts, results = zip(*on_ranks(3, stalling, HOROVOD_STALL_CHECK_TIME_SECONDS="0.4"), strict=True)
    assert results == ([3.0, 3.0],) * 3
    said = but_for_go(texts[0])
    assert len(said) == 2  # once for each name
    assert said[0].startswith("stall: 'allreduce.late' was submitted by ranks 0, 2, but for ")
    assert said[0].endswith(" not by rank 1")
    assert said[1].startswith("stall: 'allreduce.other' was submitted by rank 1, but for ")
    assert said[1].endswith(" not by ranks 0, 2")
    assert texts[1:] == ([], [])


def stalling_for_too_long(blocking):
    if hvd.rank() == 1:
        time.sleep(0.1)
        return failure_of(lambda: hvd.allreduce(torch.ones(1), name="never") and time.sleep(0.05))
    if blocking:
        return failure_of(lambda: hvd.allreduce(torch.ones(2), name="late"))
    handle = hvd.allreduce_async(torch.ones(2), name="late")
    return failure_of(lambda: hvd.synchronize(handle))


@pytest.mark.parametrize("blocking", [True, False])
def test_a_long_stall_ends_the_job(blocking):
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.5"}
    for text in on_ranks(2, stalling_for_too_long, blocking, **times):
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: " in text
        assert "'allreduce.late' was submitted by rank 0, but for" in text


def without_check():
    from ringreduce.horovod.job import job

    return job().stalls is None


def test_the_check_can_be_disabled():
    assert on_ranks(2, without_check, HOROVOD_STALL_CHECK_DISABLE="1") == [True, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [("HOROVOD_CYCLE_TIME", "fast"), ("HOROVOD_FUSION_THRESHOLD", "-1"), ("HOROVOD_LOG_LEVEL", "loud")],
)
def test_an_invalid_variable_is_named(monkeypatch, name, value):
    from ringreduce.horovod import variables

    with pytest.raises(ValueError, match=f"{name} .*{value}"):
        variables.read({name: value})


def test_autotune_is_accepted(caplog):
    from ringreduce.horovod import variables

    with caplog.at_level(logging.INFO, "ringreduce.horovod"):
        found = variables.read(
            {"HOROVOD_AUTOTUNE": "1", "HOROVOD_LOG_LEVEL": "info", "HOROVOD_CYCLE_TIME": ""}
        )
    assert found.cycle == 1e-3
    assert "nothing to tune" in caplog.text
    variables.read({"HOROVOD_LOG_LEVEL": "warning"})
