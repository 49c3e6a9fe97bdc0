"""Building the backend on first use, with stubs for the compiler: where to, by whom, and what is said when it fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from ringreduce.backend import build, target  # noqa: E402
from ringreduce.build import on_first_use as building  # noqa: E402
from tests.processes import gone  # noqa: E402

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An installation without the module for this torch, and an empty cache."""
    monkeypatch.setattr(target, "name", lambda: "_torch-test.so")
    monkeypatch.setenv("RINGREDUCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(building.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CXXFLAGS", raising=False)
    return tmp_path / "cache"


STUB = """#!{python}
import os, sys, time
open({calls!r} + ".process", "w").write(str(os.getpid()))
open({calls!r}, "a").write("called\\n")
time.sleep({seconds})
{ending}
open(sys.argv[sys.argv.index("-o") + 1], "w").write("a module")
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a stub the compiler; how often it has been called is in its list of calls."""
    calls = tmp_path / "calls"
    calls.write_text("")

    def use(seconds=0.0, ending=""):
        stub = tmp_path / "stub"
        stub.write_text(STUB.format(python=sys.executable, calls=str(calls), seconds=seconds, ending=ending))
        stub.chmod(0o755)
        monkeypatch.setenv("CXX", str(stub))
        return calls

    return use


# --- where it is kept --------------------------------------------------------------------------------


def test_what_is_built_is_found_again(cache, compiler, capfd):
    calls = compiler()
    module = build.module()
    assert module.read_text() == "a module"
    assert module.parent.parent == cache
    notice = capfd.readouterr().err
    assert notice.startswith(f"ringreduce: building its torch backend for torch {torch.__version__} (once")
    assert notice.count("\n") == 1
    assert build.module() == module
    assert calls.read_text() == "called\n"
    assert capfd.readouterr().err == ""
    assert sorted(path.name for path in module.parent.iterdir()) == ["_torch-test.so", "compiler.log", "lock"]


def test_another_folder_where_the_cache_cannot_be_written(cache, compiler, capfd):
    calls = compiler()
    cache.write_text("not a folder")
    module = build.module()
    assert module.parent.parent == cache.parent / f"ringreduce-{os.getuid()}"
    assert f"cannot write to {cache} (" in capfd.readouterr().err
    assert build.module() == module
    assert calls.read_text() == "called\n"


def test_nothing_is_taken_from_a_folder_that_others_can_write(cache, compiler):
    compiler()
    cache.write_text("not a folder")
    module = build.module()
    module.parent.parent.chmod(0o777)
    with pytest.raises(RuntimeError, match="set the environment variable RINGREDUCE_CACHE to another folder"):
        build.module()


# --- several at once ------------------------------------------------------------------------------------------


def _told(results):
    try:
        results.put(str(build.module()))
    except RuntimeError as error:
        results.put(str(error))


def at_once(count):
    """What module() returns, or says, in so many processes."""
    results = FORK.Queue()
    ranks = [FORK.Process(target=_told, args=(results,), daemon=True) for _ in range(count)]
    for rank in ranks:
        rank.start()
    told = [results.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    return told


def test_one_builds_and_the_others_wait(cache, compiler, capfd):
    calls = compiler(seconds=1)
    (built,) = set(at_once(4))
    assert Path(built).read_text() == "a module"
    assert calls.read_text() == "called\n"
    assert capfd.readouterr().err.count("building") == 1


def test_all_learn_why_it_failed(cache, compiler):
    calls = compiler(seconds=1, ending="sys.exit('all.cpp:1:1: error: no such thing')")
    (said,) = set(at_once(4))
    assert "all.cpp:1:1: error: no such thing" in said
    assert calls.read_text() == "called\n"
    with pytest.raises(RuntimeError):  # the next one tries again
        build.module()
    assert calls.read_text() == "called\n" * 2


def test_a_killed_builder_leaves_no_lock(cache, compiler):
    calls = compiler(seconds=60)
    builder = FORK.Process(target=build.module, daemon=True)
    builder.start()
    deadline = time.monotonic() + 60
    while not calls.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    first = int(calls.with_name("calls.process").read_text())
    os.kill(builder.pid, signal.SIGKILL)
    builder.join(60)
    compiler()
    assert build.module().read_text() == "a module"
    assert not gone(first)  # nobody has waited for the killed one's compiler
    os.kill(first, signal.SIGKILL)


# --- what is said when it cannot be built ---------------------------------------------------------------------


def test_a_torch_that_is_too_old(monkeypatch, cache):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(RuntimeError, match=r"needs torch 2\.6 or later; this is torch 2\.5\.1"):
        build.module()


def test_no_compiler(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    said = (
        r"must be built once for torch .*, but there is no C\+\+ compiler\. Install one \(`apt install g\+\+`"
    )
    with pytest.raises(RuntimeError, match=said):
        build.module()


def test_a_compiler_that_is_not_there(cache, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler -m64")
    with pytest.raises(RuntimeError, match="CXX names '/no/such/compiler -m64', which is not found"):
        build.module()


def test_no_headers_of_python(cache, compiler, monkeypatch):
    compiler()
    monkeypatch.setattr(build.sysconfig, "get_path", lambda kind: "/nowhere")
    with pytest.raises(RuntimeError, match=r"there is no /nowhere/Python\.h.*apt install python3-dev"):
        build.module()


def test_what_the_compiler_says(cache, compiler, monkeypatch):
    compiler(ending="print('note'); sys.exit('all.cpp:1:1: error: no such thing')")
    with pytest.raises(RuntimeError) as raised:
        build.module()
    said = str(raised.value)
    assert "exited with status 1" in said
    assert said.endswith("all.cpp:1:1: error: no such thing")
    log = next(cache.glob("*/compiler.log"))
    assert str(log) in said
    assert "note" in log.read_text()
    assert "newer" not in said
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    with pytest.raises(
        RuntimeError, match=r"torch 99\.1\.0, which is newer than the newest version that it knows, 2\.15"
    ):
        build.module()


def test_a_compiler_that_never_ends(cache, compiler, monkeypatch):
    compiler(seconds=30)
    monkeypatch.setattr(building, "PATIENCE", 1.0)
    with pytest.raises(RuntimeError, match="took longer than 1 s"):
        build.module()
    compiler()
    assert build.module().exists()


def test_a_builder_that_never_ends(cache, compiler, monkeypatch):
    compiler(seconds=5)
    builder = FORK.Process(target=build.module, daemon=True)
    builder.start()
    monkeypatch.setattr(building, "PATIENCE", 0.5)
    deadline = time.monotonic() + 60
    while not list(cache.glob("*/building-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(TimeoutError, match="another process has been building its torch backend for 0 s"):
        build.module()
    builder.kill()
    builder.join(60)
