"""Builds on first use what is compiled for something that is there only then: torch, or an MPI library.

One compiler command over one file that includes all sources. What is built is kept in a cache folder, under a name
made from all that it depends on. Of several processes at once one builds, the others wait: a lock of the operating
system's, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "libringreduce.so"
PATIENCE = 1800.0  # seconds for the compiler, or for another process that builds
_LOOK_EVERY = 0.1
_LINES = 12  # of the compiler's errors


@dataclass(frozen=True)
class Recipe:
    """Something that is built on first use.

    Args:
        thing: what it is, for messages: "its torch backend".
        target: what it is built for, for messages: "torch 2.13.0".
        folder: how its folders in the cache begin.
        name: its file's.
        units: the sources that are compiled.
        includes: folders in which these find headers of ours.
        ingredients: what else the result depends on, but for the compiler.
        command: the compiler's command that makes the second file from the first. Asked for only if there is something
            to build; raises RuntimeError if that cannot be.
        takes: how long it takes, for messages.
        doubt: why it may not compile, for messages: ", which is newer than ...".
    """

    thing: str
    target: str
    folder: str
    name: str
    units: Sequence[Path]
    includes: Sequence[Path]
    ingredients: Sequence[str]
    command: Callable[[Path, Path], list[str]]
    takes: str = "about a minute"
    doubt: str = ""


def built(recipe: Recipe) -> Path:
    """The file; builds it if there is none.

    Raises:
        RuntimeError: it cannot be built: there is no compiler, or compiling has failed.
        TimeoutError: another process has been building for half an hour.
    """
    at = Path(f"{recipe.folder}-{key(recipe)}") / recipe.name
    for folder in (_chosen_folder(), _temporary_folder()):
        if (folder / at).exists() and (folder == _chosen_folder() or _is_mine(folder)):
            return folder / at
    made = _writable_folder(recipe) / at
    made.parent.mkdir(exist_ok=True)
    with _locked(made.parent / "lock", recipe):
        if not made.exists():  # another rank may have built it meanwhile
            _build(recipe, made)
    return made


def key(recipe: Recipe) -> str:
    """A digest of all that the file depends on, but for the compiler."""
    digest = hashlib.sha256()
    for ingredient in (recipe.name, *recipe.ingredients):
        digest.update(f"{ingredient}\0".encode())
    for source in sources(recipe.units, recipe.includes):
        folder = next(folder for folder in recipe.includes if source.is_relative_to(folder))
        digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def csrc() -> Path:
    """The folder of the C++ sources: in the package once it is installed, beside it in the repository."""
    for folder in (PACKAGE.parent / "csrc", PACKAGE / "csrc"):
        if (folder / "front" / "group.h").exists():
            return folder
    raise RuntimeError(f"ringreduce's C++ sources are missing from {PACKAGE}: install it again")


def sources(units: Sequence[Path], includes: Sequence[Path]) -> list[Path]:
    """What is compiled, and all of ours that it includes."""
    found = dict.fromkeys(units)
    pending = list(found)
    while pending:
        for wanted in re.findall(r'^#include "(.+)"', pending.pop().read_text(), re.MULTILINE):
            path = next((at / wanted for at in includes if (at / wanted).exists()), None)
            if path is None:
                raise RuntimeError(f"ringreduce's C++ source {wanted} is missing: install ringreduce again")
            if path not in found:
                found[path] = None
                pending.append(path)
    return list(found)


def compiler(needed: str, otherwise: str) -> list[str]:
    """The C++ compiler: what CXX says, or else one that is found.

    Args:
        needed: what for, for messages: "its torch backend must be built once for torch 2.13.0".
        otherwise: what else can be done, for messages.
    """
    given = os.environ.get("CXX")
    for name in [given] if given else ["c++", "g++", "clang++"]:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError(
        f"ringreduce: {needed}, and "
        + (f"CXX names {given!r}, which is not found. " if given else "there is no C++ compiler. ")
        + "Install one (`apt install g++`, `dnf install gcc-c++` or `conda install gxx`), let the environment variable "
        f"CXX name it{otherwise}"
    )


def extra_options() -> list[str]:
    """What CXXFLAGS adds to the compiler's options."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


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


def _writable_folder(recipe: Recipe) -> Path:
    chosen, temporary = _chosen_folder(), _temporary_folder()
    problem = _problem_with(chosen)
    if problem is None:
        return chosen
    if _problem_with(temporary) is None and _is_mine(temporary):
        print(f"ringreduce: cannot write to {chosen} ({problem}); using {temporary}", file=sys.stderr)
        return temporary
    raise RuntimeError(
        f"ringreduce: cannot write to {chosen} ({problem}), where {recipe.thing} would be kept, nor to "
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
def _locked(path: Path, recipe: Recipe) -> Iterator[None]:
    """Holds the lock; raises what the process that held it before has failed with, instead of failing again."""
    start = time.time()
    with path.open("a+") as lock:
        waited = _wait_for(lock, recipe)
        failure = path.with_name("failure")
        if waited and failure.exists() and failure.stat().st_mtime >= start:
            raise RuntimeError(failure.read_text())
        try:
            yield
        except RuntimeError as error:
            failure.write_text(str(error))
            raise


def _wait_for(lock: IO[str], recipe: Recipe) -> bool:
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
                f"ringreduce: another process has been building {recipe.thing} for {PATIENCE:.0f} s; it holds "
                f"{lock.name}"
            )
        time.sleep(_LOOK_EVERY)


# --- compiling ------------------------------------------------------------------------------------------------


def _build(recipe: Recipe, made: Path) -> None:
    recipe.command(Path("all.cpp"), made)  # raises if there is no compiler
    print(
        f"ringreduce: building {recipe.thing} for {recipe.target} (once, {recipe.takes})...",
        file=sys.stderr,
        flush=True,
    )
    # What a process that was killed has left.
    for left in made.parent.glob("building-*"):
        if left.stat().st_mtime < time.time() - PATIENCE:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=made.parent) as scratch:
        unit = Path(scratch) / "all.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in recipe.units))
        file = Path(scratch) / made.name
        _compile(recipe, recipe.command(unit, file), made.parent / "compiler.log")
        file.replace(made)  # at once: nobody ever sees half of it


def _compile(recipe: Recipe, words: list[str], log: Path) -> None:
    with log.open("w") as output:
        print(shlex.join(words), file=output, flush=True)
        try:
            # Into a file: of a pipe the compiler's own children would hold the other end.
            run = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"ringreduce: building {recipe.thing} took longer than {PATIENCE:.0f} s; see {log}"
            ) from None
    if run.returncode == 0:
        return
    lines = log.read_text(errors="replace").splitlines()[1:]
    errors = [line for line in lines if "error" in line] or lines
    raise RuntimeError(
        f"ringreduce: {recipe.thing} cannot be built for {recipe.target}{recipe.doubt}: {words[0]} ended "
        f"with {run.returncode}; {log} has all that it said, beginning with\n" + "\n".join(errors[:_LINES])
    )
