"""The trace of a step."""

import json
from itertools import pairwise

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan.prediction import predict
from ringreduce.studies.plan.strategies import strategy
from ringreduce.studies.plan.trace import trace
from tests.studies.plan.jobs import cluster, job


def test_a_trace_holds_each_operation_and_what_is_exposed(tmp_path):
    found = predict(job(), cluster(rate=1e8), strategy("data_parallel"), 4)
    trace("data_parallel", found, tmp_path / "new" / "step.json")
    events = json.loads((tmp_path / "new" / "step.json").read_text())["traceEvents"]
    rows = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert list(rows.values()) == ["compute", "communication", "waits"]
    spans = [one for one in events if one["ph"] == "X"]
    names = [one["name"] for one in spans]
    assert (
        names.count("all_reduce bucket 0") == 1 and "forward layer 0" in names and "backward layer 3" in names
    )
    waits = [one for one in spans if one["name"] == "exposed communication"]
    assert sum(one["dur"] for one in waits) == pytest.approx(1e6 * found.exposed)
    assert max(one["ts"] + one["dur"] for one in spans) == pytest.approx(1e6 * found.seconds)
    assert next(one for one in spans if one.get("cat") == "communication")["args"]["bytes"] > 0
    for row in rows:  # what one row shows does not overlap
        own = sorted((one["ts"], one["ts"] + one["dur"]) for one in spans if one["tid"] == row)
        assert all(ended <= began + 0.001 for (_, ended), (began, _) in pairwise(own))
