"""A framework that is missing or too old gives one line with its version and the remedy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slowly

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

OLDEST = {"ray": "2.56", "torchft": "0.2"}


def said(package: str, before: str) -> str:
    """The last line that importing the module for a package prints."""
    program = f"import importlib.metadata, sys; {before}; import ringreduce.{package}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("package", ["ray", *slowly(*(name for name in OLDEST if name != "ray"))])
def test_a_missing_one(package):
    none = "def missing(name): raise importlib.metadata.PackageNotFoundError(name)"
    hidden = f"sys.modules[{package!r}] = None; exec({none!r}); importlib.metadata.version = missing"
    assert said(package, hidden) == (
        f"ImportError: ringreduce.{package} needs {package} {OLDEST[package]} or later, but there is none: "
        f"pip install '{package}>={OLDEST[package]}'"
    )


@pytest.mark.slow
@pytest.mark.parametrize("package", OLDEST)
def test_an_old_one(package, tmp_path: Path):
    """One that lacks the modules that ours needs."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    about = tmp_path / f"{package}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    line = said(package, f"sys.path.insert(0, {str(tmp_path)!r})")
    assert line.startswith(
        f"ImportError: ringreduce.{package} needs {package} {OLDEST[package]} or later, but this is"
    )
    assert f"{package} 0.1, where {package}." in line
    assert line.endswith(f"cannot be imported: pip install '{package}>={OLDEST[package]}'")
