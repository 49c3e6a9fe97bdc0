"""The timeline is a JSON file in Chrome's trace event format."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import ringreduce.horovod.torch as hvd  # noqa: E402
from tests.frameworks.horovod.ranks import on_ranks  # noqa: E402


def step():
    hvd.allreduce(torch.ones(2), name="a")
    hvd.synchronize(hvd.broadcast_async(torch.ones(2), 0, name="b"))


def started(path, mark_cycles):
    step()
    hvd.start_timeline(f"{path}{hvd.rank()}", mark_cycles)
    step()
    hvd.stop_timeline()
    step()


def events_of(path):
    events = json.loads(path.read_text())
    names = {one["pid"]: one["args"]["name"] for one in events if one["ph"] == "M"}
    spans = [(names[one["pid"]], one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"]
    return spans, [one for one in events if one["name"] == "CYCLE_START"]


@pytest.mark.parametrize("mark_cycles", [True, False])
def test_between_start_and_stop(tmp_path, mark_cycles):
    on_ranks(2, started, f"{tmp_path}/timeline", mark_cycles)
    spans, cycles = events_of(tmp_path / "timeline0")
    assert [span[:2] for span in spans] == [
        ("allreduce.a", "NEGOTIATE_ALLREDUCE"),
        ("allreduce.a", "ALLREDUCE"),
        ("broadcast.b", "NEGOTIATE_BROADCAST"),
        ("broadcast.b", "BROADCAST"),
    ]
    for (_, _, began, length), (_, _, after, _) in zip(spans[::2], spans[1::2], strict=True):
        assert began >= 0
        assert began + length == pytest.approx(after, abs=0.01)
    assert bool(cycles) == mark_cycles
    assert not (tmp_path / "timeline1").exists()  # only rank 0 writes


def test_by_variables(tmp_path):
    path = tmp_path / "timeline"
    on_ranks(2, step, HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_MARK_CYCLES="1")
    spans, cycles = events_of(path)
    assert {name for name, *_ in spans} == {"allreduce.a", "broadcast.b"}
    assert cycles
