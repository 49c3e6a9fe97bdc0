"""What runs torch's tests tells failures, hangs and skips, and compares rightly with Gloo. Needs no backend of ours."""

from __future__ import annotations

import importlib.util
import json

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from .suite import expected, outcome, report
from .suite.client import Suite
from .suite.outcome import FAILED, HUNG, PASSED, SKIPPED, Outcome

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gloo():
    with Suite("gloo", 2) as suite:
        yield suite


def test_passes(gloo):
    assert gloo.ask("test_all_reduce_sum", 60).result().outcome == PASSED


def test_failure_has_the_exception_of_every_rank(gloo):
    # Gloo refuses blocks of different sizes; torch does not run this test with it.
    found = gloo.ask("test_all_to_all", 60).result()
    assert found.outcome == FAILED and sorted(found.ranks) == ["0", "1"]
    assert "invalid tensor size" in found.first_error()
    assert all("in test_all_to_all\n" in told for told in found.ranks.values())


def test_hang_has_the_stacks_of_every_rank_and_does_not_stay(gloo):
    # Rank 1 stays away for 2 s from a barrier that waits as long, and then in one of torch's for rank 0.
    found = gloo.ask("test_monitored_barrier_gloo", 1.0).result()
    assert found.outcome == HUNG and sorted(found.ranks) == ["0", "1"]
    assert "in monitored_barrier" in found.ranks["0"]
    assert "c10d::ProcessGroupGloo::monitoredBarrier" in found.ranks["0"]
    assert "in _barrier" in found.ranks["1"]
    assert all(told.startswith("its process: ") for told in found.ranks.values())
    assert gloo.ask("test_get_rank", 60).result().outcome == PASSED


def test_skips_are_known_without_a_group(gloo):
    assert gloo.skips["test_broadcast_cuda"] == "CUDA is not available."
    assert gloo.skips["test_all_reduce_group_sum"] == "Skipped due to small world size."
    assert gloo.skips["test_gather_object"] == "Test requires an exact world size of 4"
    assert "test_barrier_timeout_global" not in gloo.skips
    found = gloo.ask("test_broadcast_cuda", 60).result()
    assert (found.outcome, found.reason) == (SKIPPED, "CUDA is not available.")


def test_a_rank_may_be_an_interpreter_of_its_own():
    with Suite("gloo", 2, start="spawn") as suite:
        found = suite.ask("test_all_reduce_sum", 120).result()
    assert found.outcome == PASSED, found.text()


@pytest.mark.slow
def test_unknown_backend_is_named(capfd):
    with pytest.raises(RuntimeError, match="server for nonesuch did not start"):
        Suite("nonesuch", 2)
    assert "knows no backend 'nonesuch'" in capfd.readouterr().err


def _outcomes(**kinds: str) -> dict[str, Outcome]:
    return {test: Outcome(test, kind) for test, kind in kinds.items()}


def test_only_what_passes_with_gloo_counts():
    gloo = {2: _outcomes(a=PASSED, b=PASSED, c=FAILED, d=SKIPPED, e=PASSED, f=PASSED, g=PASSED)}
    ours = {2: _outcomes(a=PASSED, b=FAILED, c=FAILED, d=FAILED, e=HUNG, f=SKIPPED, g=PASSED)}
    entries = [
        expected.Expected("f", "why"),
        expected.Expected("g", "why"),
        expected.Expected("b", "why", (3,)),
    ]
    verdict = report.judge(ours, gloo, entries)
    assert [one.test for _, one in verdict.worse] == ["b", "e"]
    assert [one.test for _, one in verdict.expected] == ["f"]
    assert verdict.stale == [(2, "g")]
    last = report.table(ours, gloo, "ringreduce").splitlines()[-1]
    assert last.split() == ["2", "2", "3", "1", "1", "|", "5", "1", "0", "1"]


def test_outcomes_are_kept(tmp_path):
    kept = [
        Outcome("b", FAILED, "ranks [0] failed", 1.5, {"0": "Traceback\nValueError: ö"}),
        Outcome("a", PASSED),
    ]
    outcome.write(tmp_path / "new" / "file.jsonl", kept)
    assert outcome.read(tmp_path / "new" / "file.jsonl") == {one.test: one for one in kept}
    assert outcome.read(tmp_path / "none.jsonl") == {}


def test_a_skip_needs_a_reason(tmp_path):
    file = tmp_path / "expected.json"
    file.write_text(json.dumps({"skipped": [{"test": "a", "reason": " "}], "adapted": []}))
    with pytest.raises(AssertionError, match="no reason"):
        expected.load(file)
