"""Builds what depends on the machine's Python and torch: the engine, its Python module, and the fronts.

    python3 bench/gpu/modules.py KIT RESULTS

Needs cmake and ninja, but neither make nor git. If KIT has the modules of an earlier visit, from the same sources and
for the same Python and torch, it takes those. It puts the modules into the package, beside the CUDA library of KIT, and
into RESULTS/modules.tar.gz. It tells the visit when "engine" and "fronts" are there, or cannot be built.
"""

from __future__ import annotations

import io
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
from importlib import metadata
from pathlib import Path

import kit
from record import append, results

PACKAGE = kit.ROOT / "ringreduce"
BUILD = kit.ROOT / "build" / "visit"
SITE = BUILD / "site"
TARGETS = ["_engine", "ringreduce_nccl", "torch_backend"]
PARTS = {
    "engine": ["libringreduce.so", f"_engine{sysconfig.get_config_var('EXT_SUFFIX')}"],
    "fronts": ["libringreduce_nccl.so", "_torch-*.so"],
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
        for patterns in PARTS.values():
            for file in (file for pattern in patterns for file in PACKAGE.glob(pattern)):
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


def configure() -> None:
    options = {
        **{"Python_EXECUTABLE": sys.executable, "RINGREDUCE_CUDA": "OFF"},
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",  # they find each other wherever they are
    }
    listed = [f"-D{name}={value}" for name, value in options.items()]
    command = ["cmake", "-G", "Ninja", "-S", str(kit.ROOT), "-B", str(BUILD), *listed]
    subprocess.run(command, check=True)


def build(part: str, known: set[str]) -> bool:
    """Builds the targets of a part, all at the same time, and puts them into the package. Some may not be known."""
    targets = [one for one in TARGETS if (one == "_engine") == (part == "engine") and one in known]
    done = subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count()), "--target", *targets])
    for pattern in PARTS[part]:
        for file in BUILD.glob(pattern):
            put(file)
    return done.returncode == 0


def main() -> None:
    carried, folder = map(Path, sys.argv[1:])
    begin = time.monotonic()

    def tell(part: str, is_there: bool, how: str) -> None:
        append(results(), built=part, ok=is_there, how=how, seconds=round(time.monotonic() - begin, 1))

    register()
    for library in carried.glob("libringreduce_cuda.so"):
        put(library)
    if unpacked(carried / "modules.tar.gz"):
        shutil.copy(carried / "modules.tar.gz", folder)
        for part in PARTS:
            tell(part, True, "carried")
        return
    configure()
    listed = subprocess.run(
        ["cmake", "--build", BUILD, "--target", "help"], capture_output=True, text=True, check=True
    ).stdout
    known = {line.partition(":")[0] for line in listed.splitlines()}
    for old in PACKAGE.glob("_torch-*.so"):
        old.unlink()  # of another engine
    for part in PARTS:
        tell(part, build(part, known), "built")
    pack(folder / "modules.tar.gz")


if __name__ == "__main__":
    main()
