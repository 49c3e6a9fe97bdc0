"""Builds what depends on the machine's Python and torch: the engine's Python module, and torch's backend.

    python3 bench/gpu/modules.py KIT RESULTS

Needs cmake and ninja, but neither make nor git. If KIT has the modules of an earlier visit, of the same sources and for
the same Python and torch, it takes those. It puts them into the package, beside the libraries of KIT that they are
linked with, and into RESULTS/modules.tar.gz. It tells the visit as soon as "engine" and "fronts" are there, or cannot
be built.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import kit
from record import append, results

PACKAGE = kit.ROOT / "ringreduce"
BUILD = kit.ROOT / "build" / "visit"
SITE = BUILD / "site"
MODULES = {  # what a part of the package adds to the kit's libraries, and its target
    "engine": (f"_engine{sysconfig.get_config_var('EXT_SUFFIX')}", "_engine"),
    "fronts": ("_torch-*.so", "torch_backend"),
}


def key() -> dict[str, str]:
    """Returns what modules must fit."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return {"sources": kit.digest(), "python": str(sysconfig.get_config_var("EXT_SUFFIX")), "torch": torch}


def unpacked(archive: Path) -> bool:
    """Takes the modules of an earlier visit, if they fit."""
    if not archive.exists():
        return False
    with tarfile.open(archive) as tar:
        described = tar.extractfile("modules.json")
        if described is None or json.load(described) != key():
            print(f"{archive} does not fit: {key()}")
            return False
        with tempfile.TemporaryDirectory() as folder:
            for one in tar.getmembers():
                if one.name.endswith(".so"):
                    tar.extract(one, folder)
                    put(Path(folder) / one.name)
    return True


def put(file: Path) -> None:
    """Puts a file into the package. Processes that have loaded what was there keep it."""
    new = PACKAGE / f"{file.name}.new"
    shutil.copy(file, new)
    new.replace(PACKAGE / file.name)


def pack(archive: Path) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=5) as tar:
        text = json.dumps(key()).encode()
        entry = tarfile.TarInfo("modules.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        for pattern, _ in MODULES.values():
            for file in PACKAGE.glob(pattern):
                tar.add(file, file.name)


def register() -> None:
    """Lets torch find its backend: by the metadata of an installed package, as if this one was."""
    text = (kit.ROOT / "pyproject.toml").read_text()
    entry = re.search(r'^\[project.entry-points."(torch.backends)"\]\n(\w+ = )"(.*)"$', text, re.MULTILINE)
    assert entry
    metadata_of_it = SITE / "ringreduce-0.dist-info"
    metadata_of_it.mkdir(parents=True, exist_ok=True)
    (metadata_of_it / "METADATA").write_text("Metadata-Version: 2.1\nName: ringreduce\nVersion: 0\n")
    (metadata_of_it / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]}{entry[3]}\n")


def configure(engine: Path) -> set[str]:
    """Returns the targets that can be built: torch's backend is not among them where torch cannot be imported."""
    options = {
        **{"Python_EXECUTABLE": sys.executable, "RINGREDUCE_CUDA": "OFF", "RINGREDUCE_ENGINE": str(engine)},
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",  # they find each other wherever they are
    }
    listed = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(["cmake", "-G", "Ninja", "-S", str(kit.ROOT), "-B", str(BUILD), *listed], check=True)
    asked = subprocess.run(
        ["cmake", "--build", BUILD, "--target", "help"], capture_output=True, text=True, check=True
    )
    return {line.partition(":")[0] for line in asked.stdout.splitlines()}


def build(targets: list[str], made: Callable[[Path], None]) -> None:
    """Builds some targets, all at the same time. Calls made() with each module as soon as it is linked."""
    command = [
        "cmake",
        "--build",
        str(BUILD),
        "-j",
        str(os.cpu_count()),
        "--target",
        *targets,
        "--",
        "-k",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as building:
        assert building.stdout
        for line in building.stdout:
            print(line, end="", flush=True)
            if "Linking CXX shared module " in line and (file := BUILD / line.split()[-1]).exists():
                made(file)


def main() -> None:
    carried, folder = (Path(one).resolve() for one in sys.argv[1:])
    begin, told = time.monotonic(), set()

    def tell(part: str, is_there: bool, how: str) -> None:
        told.add(part)
        append(results(), built=part, ok=is_there, how=how, seconds=round(time.monotonic() - begin, 1))

    def made(file: Path) -> None:
        put(file)
        tell(next(part for part, (pattern, _) in MODULES.items() if file.match(pattern)), True, "built")

    def put_libraries() -> None:
        for name in kit.LIBRARIES:
            if (carried / name).exists():  # a kit for the emulated GPU has another one for CUDA
                put(carried / name)

    register()
    if unpacked(carried / "modules.tar.gz"):
        put_libraries()
        shutil.copy(carried / "modules.tar.gz", folder)
        for part in MODULES:
            tell(part, True, "carried")
        return
    known = configure(carried / "libringreduce.so")  # the package stays as it is if this fails
    put_libraries()
    old = [PACKAGE.glob("_torch-*.so"), *(BUILD.glob(pattern) for pattern, _ in MODULES.values())]
    for file in itertools.chain(*old):
        file.unlink()  # of another engine; what is not there is linked, and linking is what build() sees
    build([target for _, target in MODULES.values() if target in known], made)
    for part, (_, target) in MODULES.items():
        if part not in told:
            tell(part, target not in known, "built" if target in known else "left out: there is no torch")
    pack(folder / "modules.tar.gz")


if __name__ == "__main__":
    main()
