"""Versions, requirements and the wheel's contents agree with each other."""

import importlib.metadata
import re
import shlex
from pathlib import Path

import pytest
import release

import ringreduce

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def in_pyproject(key):
    """A list of strings; tomllib is not in Python 3.10."""
    listed = re.search(rf"^{key} = \[(.*?)\]$", PYPROJECT, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r'"([^"]+)"', listed)


def test_versions_agree():
    assert release.version() == ringreduce.__version__ == importlib.metadata.version("ringreduce")


def test_make_installs_what_the_build_requires():
    line = re.search(r"^BUILD_REQUIRES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert set(in_pyproject("requires")) <= set(shlex.split(line))


def test_what_errors_say_to_install_is_declared():
    asked = {
        (package, extra)
        for path in (ROOT / "ringreduce").rglob("*.py")
        for package, extra in re.findall(
            r"needs ([\w-]+): pip install 'ringreduce\[(\w+)\]'", path.read_text()
        )
    }
    assert ("ml_dtypes", "bench") in asked
    for package, extra in asked:
        assert package in [re.split("[<>=]", one)[0] for one in in_pyproject(extra)], extra


@pytest.mark.parametrize("name", ["py.typed", "_engine.pyi"])
def test_type_information_is_shipped(name):
    patterns = in_pyproject("ringreduce")
    assert (ROOT / "ringreduce" / name).exists()
    assert any(Path(name).match(pattern) for pattern in patterns)


def test_public_names_exist():
    assert sorted(ringreduce.__all__) == ringreduce.__all__
    for name in ringreduce.__all__:
        assert getattr(ringreduce, name).__doc__
