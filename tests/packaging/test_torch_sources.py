"""What the torch backend is compiled from, and that an installation carries all of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from installation import BUILT, ROOT, by_make, install  # noqa: E402

from ringreduce.backend import build, target  # noqa: E402
from ringreduce.build import on_first_use as building  # noqa: E402


def test_sources_are_all_that_is_included():
    names = {path.relative_to(target.csrc()).as_posix() for path in build.sources()}
    own = {"fronts/torch/module.cpp", "fronts/torch/backend.h"}
    assert own | {"fronts/shared/group.h", "engine/planning/call.h"} <= names
    assert target.versions_folder().relative_to(target.csrc()).as_posix() + "/extras.h" in names
    assert not [name for name in names if name.startswith(("transport", "fronts/python"))]


@by_make
def test_sources_are_installed(tmp_path):
    installed = install(tmp_path) / "csrc"
    for source in build.sources():
        assert (installed / source.relative_to(target.csrc())).read_bytes() == source.read_bytes()
    versions = {folder.name for folder in (installed / "fronts" / "torch" / "versions").iterdir()}
    assert set(target.VERSIONS.values()) <= versions


def test_every_version_has_its_folder():
    versions = target.csrc() / "fronts" / "torch" / "versions"
    folders = {folder.name for folder in versions.iterdir() if folder.is_dir()}
    assert set(target.VERSIONS.values()) == folders
    assert list(target.VERSIONS) == sorted(target.VERSIONS, reverse=True)
    assert min(target.VERSIONS) == target.OLDEST


@by_make
def test_it_is_compiled_as_by_cmake():
    entries = json.loads((BUILT / "compile_commands.json").read_text())
    commands = [entry["command"].split() for entry in entries if "/torch_backend.dir/" in entry["file"]]
    words = [word.replace("\\", "") for word in commands[0]]
    ours = [word for word in build.command(["c++"], Path("all.cpp"), Path("out.so")) if word.startswith("-")]
    compiling = ours[: ours.index("-shared")]
    different = {word for word in words if word.startswith(("-std", "-O", "-f", "-D"))} ^ {
        word for word in compiling if word.startswith(("-std", "-O", "-f", "-D"))
    }
    assert different == {"-Dtorch_backend_EXPORTS"}


@pytest.mark.parametrize(
    ("version", "folder"),
    [
        ("2.6.0", "from_2_6"),
        ("2.7.1+cpu", "from_2_7"),
        ("2.13.0a0+gitab12", "from_2_7"),
        ("2.15.0", "from_2_15"),
        ("3.0.1", "from_2_15"),
    ],
)
def test_a_version_gets_its_folder(monkeypatch, version, folder):
    monkeypatch.setattr(torch, "__version__", version)
    target.check()
    assert target.versions_folder().name == folder


def test_key_changes_with_whatever_it_depends_on(tmp_path, monkeypatch):
    keys = [building.key(build.recipe())]
    assert building.key(build.recipe()) == keys[0]
    monkeypatch.setenv("CXXFLAGS", "-g")
    keys.append(building.key(build.recipe()))
    monkeypatch.setattr(torch.version, "git_version", "another")
    keys.append(building.key(build.recipe()))
    monkeypatch.setattr(target, "definitions", dict)
    keys.append(building.key(build.recipe()))
    copied = shutil.copytree(target.csrc(), tmp_path / "csrc")
    monkeypatch.setattr(target, "csrc", lambda: copied)
    assert building.key(build.recipe()) == keys[-1]  # wherever the sources are
    for name in ("fronts/shared/group.h", "fronts/torch/module.cpp"):
        with (copied / name).open("a") as source:
            source.write("// more\n")
        keys.append(building.key(build.recipe()))
    (copied / "transport" / "shm.h").write_text("// not included")
    assert building.key(build.recipe()) == keys[-1]
    assert len(set(keys)) == len(keys)


FIRST_USE = """
import torch, torch.distributed as dist
dist.init_process_group("ringreduce", rank=0, world_size=1, store=dist.HashStore())
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist(), __import__("ringreduce").__file__)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@by_make
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_first_use_of_an_installation_without_the_module(tmp_path):
    """As where torch was installed after ringreduce. Without optimizing, which takes half the time."""
    package = install(tmp_path)
    for source in (ROOT / "ringreduce").rglob("*.py"):
        copied = package / source.relative_to(ROOT / "ringreduce")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copied)
    for module in package.glob("_torch-*.so"):
        module.unlink()
    cache = tmp_path / "cache"
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "RINGREDUCE_CACHE": str(cache),
        "CXXFLAGS": "-O0",
    }
    words = [sys.executable, "-c", FIRST_USE]
    run = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert run.stdout.strip() == f"[1.0, 1.0, 1.0] {package / '__init__.py'}", run.stderr
    assert run.stderr.count("building its torch backend") == 1
    assert len(list(cache.glob(f"*/{target.name()}"))) == 1
