"""Builds the compiled part of the torch backend when it is first needed: where the installation had no torch, or
another version of it.

One compiler command over one file that includes all sources; it needs a C++ compiler and Python's headers, and
neither ninja nor setuptools, as torch's own loader of extensions would. What is built is kept in a cache folder,
under a name made from all that it depends on. Of several processes at once one builds, the others wait: a lock of
the operating system's, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from ringreduce.backend import target

PATIENCE = 1800.0  # seconds for the compiler, or for another process that builds
_LOOK_EVERY = 0.1
_LINES = 12  # of the compiler's errors


def module() -> Path:
    """The compiled module's file for the torch that is installed; builds it if there is none.

    Raises:
        RuntimeError: this torch is too old; there is no compiler, or no Python.h; or compiling has failed.
        TimeoutError: another process has been building for half an hour.
    """
    target.check()
    built_along = target.PACKAGE / target.name()
    if built_along.exists():
        return built_along
    at = Path(f"torch-{torch.__version__}-{key()}") / target.name()
    for folder in (_chosen_folder(), _temporary_folder()):
        if (folder / at).exists() and (folder == _chosen_folder() or _is_mine(folder)):
            return folder / at
    built = _writable_folder() / at
    built.parent.mkdir(exist_ok=True)
    with _locked(built.parent / "lock"):
        if not built.exists():  # another rank may have built it meanwhile
            _build(built)
    return built


def key() -> str:
    """A digest of all that the module depends on, but for the compiler."""
    digest = hashlib.sha256()
    ingredients = [torch.version.git_version, target.name(), *target.OPTIONS, *_extra_options()]
    ingredients += [f"{macro}={value}" for macro, value in target.definitions().items()]
    for ingredient in ingredients:
        digest.update(f"{ingredient}\0".encode())
    for source in target.sources():
        digest.update(source.relative_to(target.csrc()).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


# --- where it is kept -----------------------------------------------------------------------------------------


def _chosen_folder() -> Path:
    chosen = os.environ.get("RINGREDUCE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(chosen or os.path.join(base, "ringreduce")).absolute()


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ringreduce-{os.getuid()}"


def _is_mine(folder: Path) -> bool:
    """Whether nobody else can put anything there: everybody can make a folder of this name."""
    found = folder.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write


def _writable_folder() -> Path:
    chosen, temporary = _chosen_folder(), _temporary_folder()
    problem = _problem_with(chosen)
    if problem is None:
        return chosen
    if _problem_with(temporary) is None and _is_mine(temporary):
        print(f"ringreduce: cannot write to {chosen} ({problem}); using {temporary}", file=sys.stderr)
        return temporary
    raise RuntimeError(
        f"ringreduce: cannot write to {chosen} ({problem}), where its torch backend would be kept, nor to "
        f"{temporary}; let the environment variable RINGREDUCE_CACHE name another folder"
    )


def _problem_with(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock; raises what the process that held it before has failed with, instead of failing again."""
    start = time.time()
    with path.open("a+") as lock:
        waited = _wait_for(lock)
        failure = path.with_name("failure")
        if waited and failure.exists() and failure.stat().st_mtime >= start:
            raise RuntimeError(failure.read_text())
        try:
            yield
        except RuntimeError as error:
            failure.write_text(str(error))
            raise


def _wait_for(lock: IO[str]) -> bool:
    deadline = time.monotonic() + PATIENCE
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
        except OSError:
            return False  # a file system without locks: several may build, and each puts a whole file there
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"ringreduce: another process has been building its torch backend for {PATIENCE:.0f} s; it holds "
                f"{lock.name}"
            )
        time.sleep(_LOOK_EVERY)


# --- compiling ------------------------------------------------------------------------------------------------


def _build(built: Path) -> None:
    compiler = _compiler()
    print(
        f"ringreduce: building its torch backend for torch {torch.__version__} (once, about a minute)...",
        file=sys.stderr,
        flush=True,
    )
    # What a process that was killed has left.
    for left in built.parent.glob("building-*"):
        if left.stat().st_mtime < time.time() - PATIENCE:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=built.parent) as scratch:
        unit = Path(scratch) / "all.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in target.units()))
        made = Path(scratch) / built.name
        _compile(command(compiler, unit, made), built.parent / "compiler.log")
        made.replace(built)  # at once: nobody ever sees half of it


def _compiler() -> list[str]:
    given = os.environ.get("CXX")
    for name in [given] if given else ["c++", "g++", "clang++"]:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            break
    else:
        raise RuntimeError(
            f"ringreduce: its torch backend must be built once for torch {torch.__version__}, and "
            + (f"CXX names {given!r}, which is not found. " if given else "there is no C++ compiler. ")
            + "Install one (`apt install g++`, `dnf install gcc-c++` or `conda install gxx`), let the environment "
            "variable CXX name it, or install ringreduce where there is a compiler and this torch, with `pip "
            "install --no-build-isolation ringreduce`"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise RuntimeError(
            f"ringreduce: its torch backend must be built once for torch {torch.__version__}, which needs Python's "
            f"headers, and there is no {header}. Install them (`apt install python3-dev` or `dnf install "
            "python3-devel`)"
        )
    return words


def _extra_options() -> list[str]:
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def command(compiler: list[str], unit: Path, made: Path) -> list[str]:
    """What compiles and links `unit`."""
    library = target.PACKAGE / "libringreduce.so"
    return [
        *compiler,
        *target.OPTIONS,
        *(f"-D{macro}={value}" for macro, value in target.definitions().items()),
        *(f"-I{folder}" for folder in (target.versions_folder(), target.csrc())),
        *(part for folder in _system_includes() for part in ("-isystem", folder)),
        *_extra_options(),
        *(str(unit), "-shared", "-o", str(made)),
        *(str(library), f"-Wl,-rpath,{library.parent}"),
        *(f"-L{target.library_folder()}", *(f"-l{name}" for name in target.LIBRARIES)),
    ]


def _system_includes() -> list[str]:
    return [
        *target.includes(),
        *dict.fromkeys(sysconfig.get_path(kind) for kind in ("include", "platinclude")),
    ]


def _compile(words: list[str], log: Path) -> None:
    with log.open("w") as output:
        print(shlex.join(words), file=output, flush=True)
        try:
            # Into a file: of a pipe the compiler's own children would hold the other end.
            run = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"ringreduce: building its torch backend took longer than {PATIENCE:.0f} s; see {log}"
            ) from None
    if run.returncode == 0:
        return
    known = ".".join(map(str, target.NEWEST))
    newer = (
        f", which is newer than the newest that it knows, {known}" if target.version() > target.NEWEST else ""
    )
    lines = log.read_text(errors="replace").splitlines()[1:]
    errors = [line for line in lines if "error" in line] or lines
    raise RuntimeError(
        f"ringreduce: its torch backend cannot be built for torch {torch.__version__}{newer}: {words[0]} ended "
        f"with {run.returncode}; {log} has all that it said, beginning with\n" + "\n".join(errors[:_LINES])
    )
