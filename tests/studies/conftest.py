import pytest


@pytest.fixture
def only_the_model(monkeypatch):
    """A recording leaves out what takes seconds and has tests of its own: the strategies' code, and coders."""
    for measures in ("measured_overheads", "measured_coders"):
        monkeypatch.setattr(f"ringreduce.studies.plan.record.{measures}", lambda _of: {})
