"""Frameworks that start Gloo train on ringreduce with RINGREDUCE_AS=gloo alone, and with Gloo's results."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from bench.frameworks.as_gloo import ROWS, SWITCH, Row, launch
from tests.frameworks.installed.programs import EXTENSIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]
STEPS, WIDTH = 4, 16
OURS, GLOO = "torch_backend", "torch"


def started(row: Row, switched: bool, **more: str) -> dict:
    try:
        importlib.metadata.version(row.package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{row.package} is not installed")
    found = launch(row, switched, STEPS, WIDTH, TORCH_EXTENSIONS_DIR=EXTENSIONS.name, **more)
    assert len(found["losses"]) == STEPS
    return found


@pytest.mark.parametrize("name", ROWS)
def test_the_variable_alone_changes_who_serves_and_nothing_else(name):
    ours, gloo = started(ROWS[name], True), started(ROWS[name], False)
    assert (ours["served by"], gloo["served by"]) == (OURS, GLOO)
    assert ours["losses"] == pytest.approx(gloo["losses"], rel=1e-5)


def test_ringreduce_run_sets_the_variable():
    with_option = ("ringreduce", "run", "-n", "2", "--as-gloo", "-m")
    row = dataclasses.replace(ROWS["Accelerate"], launcher=with_option)
    assert started(row, False)["served by"] == OURS


def test_a_notebook_that_forks_its_ranks():
    row = dataclasses.replace(ROWS["Accelerate"], program="notebook", launcher=())
    assert started(row, True)["served by"] == OURS


def test_rays_runtime_environment_carries_the_variable():
    """Ray reads a job's configuration from this variable, as from ``ray.init(runtime_env=...)``."""
    job = json.dumps({"runtime_env": {"env_vars": SWITCH}})
    assert started(ROWS["Ray Train"], False, RAY_JOB_CONFIG_JSON_ENV_VAR=job)["served by"] == OURS
