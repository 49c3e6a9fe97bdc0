"""Traces: the format, spans inside spans, and clocks that do not agree."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import ringreduce
from ringreduce.training.data_parallel import BucketTiming, StepTimings
from tests.conftest import on_processes, on_threads

BUSY_MACHINE = 5e3  # microseconds by which a thread may come late


def alone(tmp_path, fill):
    """The events of a timeline of one rank, without labels."""
    (comm,) = ringreduce.local_group(1)
    timeline = ringreduce.Timeline(comm)
    fill(timeline)
    timeline.save(tmp_path / "trace.json")
    comm.close()
    return [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]


def record(comm, path):
    timeline = ringreduce.Timeline(comm)
    comm.barrier()
    with timeline.span("step", number=comm.rank):
        with timeline.span("forward"):
            time.sleep(0.002)
        now = time.monotonic()
        timeline.add("bucket 0", now, now + 0.001, "communication", bytes=4)
    timeline.save(path)


def test_the_file_is_a_trace_that_viewers_read(tmp_path):
    path = tmp_path / "trace.json"
    on_processes(3, record, path)
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ms"
    labels = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(labels) + len(spans) == len(trace["traceEvents"])
    processes = {e["pid"]: e["args"]["name"] for e in labels if e["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    for rank in range(3):
        lanes = {e["tid"]: e["args"] for e in labels if (e["pid"], e["name"]) == (rank, "thread_name")}
        assert [lanes[tid]["name"] for tid in sorted(lanes)] == ["compute", "communication", "waits"]
        own = {e["name"]: e for e in spans if e["pid"] == rank}
        assert {name: e["tid"] for name, e in own.items()} == {"step": 0, "forward": 0, "bucket 0": 1}
        assert own["step"]["args"] == {"number": rank} and own["bucket 0"]["args"] == {"bytes": 4}
        assert own["bucket 0"]["dur"] == pytest.approx(1000, abs=0.01)
    assert min(e["ts"] for e in spans) == 0


def test_spans_nest(tmp_path):
    def nested(timeline):
        for _ in range(3):
            with timeline.span("outer"), timeline.span("middle"), timeline.span("inner"):
                pass

    events = alone(tmp_path, nested)
    for inner, middle, outer in zip(*(iter(events),) * 3, strict=True):
        assert [inner["name"], middle["name"], outer["name"]] == ["inner", "middle", "outer"]
        for small, large in ((inner, middle), (middle, outer)):
            assert large["ts"] <= small["ts"]
            assert round(small["ts"] + small["dur"], 3) <= round(large["ts"] + large["dur"], 3)


def test_a_span_is_kept_when_its_block_raises(tmp_path):
    def fails(timeline):
        with pytest.raises(RuntimeError), timeline.span("backward"):
            raise RuntimeError

    assert [e["name"] for e in alone(tmp_path, fails)] == ["backward"]


def same_moments(comm, path, rate):
    """Every rank notes three moments that are the same for all, on a clock that runs wrong by its rank."""

    def wrong(moment):
        return moment * (1 + rate * comm.rank) - 1000 * comm.rank

    timeline = ringreduce.Timeline(comm, clock=lambda: wrong(time.monotonic()))
    for number in range(3):
        time.sleep(0.1)
        # Rank 0's, so that all note the same.
        now = float(comm.broadcast(np.array([time.monotonic()]))[0])
        timeline.add(f"moment {number}", wrong(now), wrong(now))
    timeline.save(path)


@pytest.mark.parametrize("rate", [0.0, 0.1], ids=["shifted", "drifting"])
def test_clocks_are_aligned(tmp_path, rate):
    path = tmp_path / "trace.json"
    on_threads(3, same_moments, path, rate)
    moments = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            moments.setdefault(event["name"], []).append(event["ts"])
    assert len(moments) == 3
    for times in moments.values():
        assert len(times) == 3 and max(times) - min(times) < BUSY_MACHINE
    firsts = [times[0] for times in moments.values()]
    assert firsts[2] - firsts[0] > 0.19e6


def test_the_timings_of_a_step(tmp_path):
    bucket = BucketTiming(index=2, nbytes=64, submitted=10.0, began=10.25, ended=11.0)
    timings = StepTimings([bucket], [(10.5, 11.0)])
    first, second = alone(tmp_path, lambda timeline: timeline.step_timings(timings))
    assert (first["name"], first["cat"], first["ts"], first["dur"]) == (
        "bucket 2",
        "communication",
        0,
        0.75e6,
    )
    assert first["args"] == {"bytes": 64, "queued_us": 0.25e6}
    assert (second["name"], second["cat"], second["ts"], second["dur"]) == ("wait", "waits", 0.25e6, 0.5e6)


def test_bad_spans_are_refused(tmp_path):
    def bad(timeline):
        with pytest.raises(ValueError, match="lane must be one of compute, communication, waits, not 'disk'"):
            timeline.add("read", 0, 1, "disk")
        with pytest.raises(ValueError, match="before began"):
            timeline.add("read", 1, 0)

    assert alone(tmp_path, bad) == []


def test_a_trace_may_be_empty_and_saved_again(tmp_path):
    (comm,) = ringreduce.local_group(1)
    timeline = ringreduce.Timeline(comm)
    timeline.save(tmp_path / "trace.json")
    with timeline.span("late"):
        pass
    timeline.save(tmp_path / "trace.json")
    names = [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("late") == 1
    comm.close()
