"""What is built before a visit to a card, and which sources it was built from. `make card-kit` calls it.

    python3 bench/gpu/kit.py FOLDER LIBRARY...

Puts the libraries and the C program of tests/gpu/nccl_program, linked with them, into FOLDER, with kit.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "gpu" / "nccl_program"
SOURCES = [
    "CMakeLists.txt",
    "pyproject.toml",
    "ringreduce/frameworks/torch/target.py",
    "csrc",
    "tests/gpu/nccl_program",
]
LIBRARIES = ["libringreduce.so", "libringreduce_nccl.so", "libringreduce_cuda.so"]
MOST = 64 << 20  # bytes


def digest() -> str:
    """Returns a digest of all that libraries and modules are built from. It needs no git."""
    sha = hashlib.sha256()
    for name in SOURCES:
        place = ROOT / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                sha.update(f"{file.relative_to(ROOT).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return sha.hexdigest()[:16]


def problem(folder: Path) -> str:
    """Returns why a kit does not serve this tree, or ""."""
    if not (folder / "kit.json").exists():
        return f"there is no kit in {folder}: make card-kit"
    if described(folder)["sources"] != digest():
        return f"the kit in {folder} was built from other sources: make card-kit again"
    return ""


def described(folder: Path) -> dict[str, str]:
    """Returns what a kit was built from, and by what. Without one, nothing."""
    place = folder / "kit.json"
    return dict(json.loads(place.read_text())) if place.exists() else {}


def compile_program(made: Path, stand_in: Path, cuda_library: Path) -> None:
    """Compiles the program, which finds its libraries beside itself."""
    files = [str(PROGRAM / "program.c"), "-o", str(made), str(stand_in), str(cuda_library)]
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-O1", *files, "-Wl,-rpath,$ORIGIN"]
    subprocess.run(command, check=True)


def said_by(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main() -> None:
    folder, *libraries = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        shutil.copy(library, folder)
    [cuda_library] = folder.glob("libringreduce_cuda*.so")
    compile_program(folder / "program", folder / "libringreduce_nccl.so", cuda_library)
    kit = {
        "sources": digest(),
        "commit": said_by("git", "describe", "--always", "--dirty", "--exclude", "*"),
        "nvcc": said_by("nvcc", "--version").rpartition("release ")[2].partition(",")[0],
    }
    (folder / "kit.json").write_text(json.dumps(kit))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB, commit {kit['commit']}, sources {kit['sources']}")
    if size > MOST // 2:
        sys.exit(f"{folder} is too large to travel with the tree: more than {MOST // 2:,} bytes")


if __name__ == "__main__":
    main()
