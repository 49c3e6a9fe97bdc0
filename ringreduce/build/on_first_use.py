"""Builds libraries on first use, for the torch or the MPI library that is installed by then.

One compiler command compiles one file that includes all sources. The result is kept in a cache folder, under a name
made from everything that it depends on. If several processes need it at once, one builds and the others wait, on a
file lock, which ends with the process that holds it.
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
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ringreduce.descriptors import above_standard, say

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY = PACKAGE / "libringreduce.so"
PATIENCE = 1800.0  # seconds to wait for the compiler, or for another process that builds
_LOOK_EVERY = 0.1
_LINES = 12  # lines of the compiler's errors to show


@dataclass(frozen=True)
class Recipe:
    """Something that is built on first use.

    Args:
        thing: what is built, for messages: "its torch backend".
        target: what it is built for, for messages: "torch 2.13.0".
        folder: the start of the names of its folders in the cache.
        name: the name of its file.
        units: the sources to compile.
        includes: the folders of our headers.
        ingredients: everything else that the result depends on, except the compiler.
        command: returns the compiler command that makes its second argument from the first. It is called only to build,
            and raises RuntimeError if that is impossible.
        takes: how long the build takes, for messages.
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


def existing(recipe: Recipe) -> Path | None:
    """Returns the file that a recipe has made, or None."""
    at = _place(recipe)
    for folder in (_chosen_folder(), _temporary_folder()):
        if (folder / at).exists() and (folder == _chosen_folder() or _is_mine(folder)):
            return folder / at
    return None


def _place(recipe: Recipe) -> Path:
    return Path(f"{recipe.folder}-{key(recipe)}") / recipe.name


def built(recipe: Recipe) -> Path:
    """Returns the file that a recipe makes. Builds it if it does not exist.

    Raises:
        RuntimeError: there is no compiler, or it failed.
        TimeoutError: another process has been building for half an hour.
    """
    if found := existing(recipe):
        return found
    made = _writable_folder(recipe) / _place(recipe)
    made.parent.mkdir(exist_ok=True)
    with _locked(made.parent / "lock", recipe):
        if not made.exists():  # another rank may have built it by now
            _build(recipe, made)
    return made


def key(recipe: Recipe) -> str:
    """Returns a digest of everything that the file depends on, except the compiler."""
    digest = hashlib.sha256()
    for ingredient in (recipe.name, *recipe.ingredients):
        digest.update(f"{ingredient}\0".encode())
    for source in sources(recipe.units, recipe.includes):
        folder = next(folder for folder in recipe.includes if source.is_relative_to(folder))
        digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def csrc() -> Path:
    """Returns the folder of the C++ sources: inside an installed package, or beside the package in the repository."""
    for folder in (PACKAGE.parent / "csrc", PACKAGE / "csrc"):
        if (folder / "fronts" / "shared" / "group.h").exists():
            return folder
    raise RuntimeError(f"ringreduce's C++ sources are missing from {PACKAGE}: reinstall ringreduce")


def sources(units: Sequence[Path], includes: Sequence[Path]) -> list[Path]:
    """Returns the files to compile, and all headers of ours that they include."""
    found = dict.fromkeys(units)
    pending = list(found)
    while pending:
        for wanted in re.findall(r'^#include "(.+)"', pending.pop().read_text(), re.MULTILINE):
            path = next((at / wanted for at in includes if (at / wanted).exists()), None)
            if path is None:
                raise RuntimeError(f"ringreduce's C++ source {wanted} is missing: reinstall ringreduce")
            if path not in found:
                found[path] = None
                pending.append(path)
    return list(found)


def compiler(needed: str, otherwise: str) -> list[str]:
    """Returns the command of the C++ compiler: CXX, or the first one found on the PATH.

    Args:
        needed: why it is needed, for messages: "its torch backend must be built once for torch 2.13.0".
        otherwise: an alternative to installing one, for messages.

    Raises:
        RuntimeError: there is no C++ compiler.
    """
    given = os.environ.get("CXX")
    for name in [given] if given else ["c++", "g++", "clang++"]:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError(
        f"ringreduce: {needed}, but "
        + (f"CXX names {given!r}, which is not found. " if given else "there is no C++ compiler. ")
        + "Install one (`apt install g++`, `dnf install gcc-c++` or `conda install gxx`), or set the environment "
        f"variable CXX to one{otherwise}"
    )


def extra_options() -> list[str]:
    """Returns the compiler options in CXXFLAGS."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def part_for(
    folder: str, title: str, target: str, headers: str, links: Sequence[str] = (), takes: str = "10 seconds"
) -> Recipe:
    """Returns how to build the part for a framework that loads it into a Python process.

    Args:
        folder: the folder in csrc/fronts.
        title: the framework's name, for messages: "JAX".
        target: the package and its version: "jaxlib 0.10.2".
        headers: the folder of the framework's headers.
        links: the linker's options.
    """
    thing = f"its part for {title}"
    options = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC")

    def command(unit: Path, made: Path) -> list[str]:
        return [
            *compiler(f"{thing} must be built once for {target}", ""),
            *options,
            f"-I{csrc()}",
            *("-isystem", headers),
            *extra_options(),
            *(str(unit), "-shared", "-o", str(made)),
            *(str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"),
            *links,
        ]

    return Recipe(
        thing=thing,
        target=target,
        folder=target.replace(" ", "-"),
        name=f"libringreduce_{folder}.so",
        units=sorted((csrc() / "fronts" / folder).glob("*.cpp")),
        includes=(csrc(),),
        ingredients=(target, *options, *extra_options(), str(LIBRARY)),
        command=command,
        takes=takes,
    )


# --- the cache folder -----------------------------------------------------------------------------------------


def _chosen_folder() -> Path:
    chosen = os.environ.get("RINGREDUCE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(chosen or os.path.join(base, "ringreduce")).absolute()


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ringreduce-{os.getuid()}"


def _is_mine(folder: Path) -> bool:
    """Returns whether only this user can write to the folder. Anyone could have made a folder of this name."""
    found = folder.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write


def _writable_folder(recipe: Recipe) -> Path:
    chosen, temporary = _chosen_folder(), _temporary_folder()
    problem = _problem_with(chosen)
    if problem is None:
        return chosen
    if _problem_with(temporary) is None and _is_mine(temporary):
        say(f"ringreduce: cannot write to {chosen} ({problem}); using {temporary}")
        return temporary
    raise RuntimeError(
        f"ringreduce: cannot write to {chosen} ({problem}), where {recipe.thing} would be kept, nor to "
        f"{temporary}; set the environment variable RINGREDUCE_CACHE to another folder"
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
    """Holds the lock. If the process that held it before failed, raises its error instead of trying again."""
    start = time.time()
    with above_standard(), path.open("a+") as lock:
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
            return False  # no locks on this file system: several processes may build; each moves a whole file there
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"ringreduce: another process has been building {recipe.thing} for {PATIENCE:.0f} s; it holds "
                f"the lock {lock.name}"
            )
        time.sleep(_LOOK_EVERY)


# --- compiling ------------------------------------------------------------------------------------------------


def _build(recipe: Recipe, made: Path) -> None:
    recipe.command(Path("all.cpp"), made)  # raises if there is no compiler
    say(f"ringreduce: building {recipe.thing} for {recipe.target} (once, {recipe.takes})...")
    # Remove what killed processes have left.
    for left in made.parent.glob("building-*"):
        if left.stat().st_mtime < time.time() - PATIENCE:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=made.parent) as scratch:
        unit = Path(scratch) / "all.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in recipe.units))
        file = Path(scratch) / made.name
        _compile(recipe, recipe.command(unit, file), made.parent / "compiler.log")
        file.replace(made)  # atomic: no process ever sees half a file


def _compile(recipe: Recipe, words: list[str], log: Path) -> None:
    with log.open("w") as output:
        print(shlex.join(words), file=output, flush=True)
        try:
            # Into a file: the compiler's children could keep the other end of a pipe open.
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
        f"ringreduce: {recipe.thing} cannot be built for {recipe.target}{recipe.doubt}: {words[0]} exited with "
        f"status {run.returncode}. {log} has its output; the first errors are\n" + "\n".join(errors[:_LINES])
    )
