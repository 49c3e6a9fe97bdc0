"""What a run of tests on a card costs: one look for it, few seconds for a hang, and killed processes last."""

from __future__ import annotations

import pytest

from . import limits, probe
from .programs import ran
from .ranks import BUILT, EMULATED_LIBRARY


@BUILT
@pytest.mark.parametrize("answer", ["yes", "there is none"])
def test_processes_do_not_look_for_a_card_again(answer):
    """If they did, they would take the emulated GPU for one, which their parents name in place of CUDA's library."""
    look = "import os; from tests.gpu import probe; print(probe.HAS_CARD, probe.WHY_NOT, os.environ[probe.VARIABLE])"
    emulated = {"RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY)}
    assert ran("-c", look, **emulated, **{probe.VARIABLE: None}).stdout == "True  yes\n"
    found = ran("-c", look, **emulated, **{probe.VARIABLE: answer}).stdout.strip()
    assert found == {"yes": "True  yes", "there is none": "False there is none there is none"}[answer]


def test_a_test_takes_seconds_on_a_card(request, monkeypatch):
    monkeypatch.setattr(limits, "HAS_CARD", True)
    limits.hold([request.node])
    assert request.node.get_closest_marker("timeout").args == (limits.TEST,)


def test_processes_are_killed_last():
    files = [f"tests/gpu/test_{name}.py" for name in ("processes", "direct_calls", "queues")]
    said = ran("-m", "pytest", "--collect-only", "-q", *files).stdout
    kills = ["killed" in line for line in said.splitlines() if "::" in line]
    assert True in kills and kills == sorted(kills)
