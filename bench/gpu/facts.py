"""Facts about a machine and its card, one a line.

    python3 bench/gpu/facts.py           prints them
    python3 bench/gpu/facts.py hold      says "yes", or why there is no card, and keeps it initialised until stdin ends

Reads only: it changes no clocks, power, modes or MIG.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from record import append, results

# Numbers of cuda.h's CUdevice_attribute.
ATTRIBUTES = {
    "multiprocessors": 16,
    "compute mode": 20,  # 0: several processes may use it
    "stream wait for values": 123,
    "virtual memory management": 102,
    "handles, file descriptor": 103,
    "handles, fabric": 128,
    "events between processes": 125,
    "multicast": 132,
    "MPS": 133,
}
PROGRAMS = ["make", "git", "g++", "cmake", "ninja", "nvcc", "nm", "ncu", "compute-sanitizer", "cuobjdump"]
PROGRAMS += ["nvidia-cuda-mps-control"]
ASKED = ["name", "driver_version", "compute_cap", "memory.total", "compute_mode", "persistence_mode"]
ASKED += ["mig.mode.current", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw"]
PACKAGES = r"torch|numpy|cupy(-cuda.*)?|nanobind|cmake|ninja|pytest(-timeout)?|nvidia-nccl-cu\d+"


def said_by(*command: str) -> str:
    """Returns what a program prints, or "" if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=8, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class Driver:
    """CUDA's driver. Raises OSError where there is none, or no GPU."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)

    def call(self, name: str, *arguments: object) -> None:
        if error := getattr(self.library, name)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(error, ctypes.byref(text))
            raise OSError(f"{name}: {text.value.decode() if text.value else error}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value


def of_the_driver() -> dict[str, object]:
    try:
        driver = Driver()
    except OSError as problem:
        return {"driver": str(problem)}
    found: dict[str, object] = {}
    for name, number in ATTRIBUTES.items():
        try:
            found[name] = driver.attribute(number)
        except OSError as problem:  # newer than the driver
            found[name] = str(problem)
    return found


def of_the_card() -> dict[str, object]:
    listed = said_by("nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader").splitlines()
    return dict(zip(ASKED, listed[0].split(", "), strict=False)) if listed else {"nvidia-smi": "lists no GPU"}


def of_torch() -> dict[str, object]:
    """Returns the functions of NCCL that torch's library needs."""
    found = importlib.util.find_spec("torch")
    library = Path(found.origin or "").parent / "lib" / "libtorch_cuda.so" if found else None
    if not library or not library.exists():
        return {}
    symbols = re.findall(r"\bU (nccl\w+)", said_by("nm", "-D", "--undefined-only", str(library)))
    return {"torch needs of NCCL": " ".join(sorted(set(symbols))) or "unknown: there is no nm"}


def of_the_machine() -> dict[str, object]:
    found: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    found["kernel"] = platform.release()
    found["missing"] = " ".join(name for name in PROGRAMS if not shutil.which(name)) or "nothing"
    found["g++"] = said_by("g++", "-dumpfullversion")
    for package in metadata.distributions():
        name = (package.metadata["Name"] or "").lower()
        if re.fullmatch(PACKAGES, name):
            found[name] = package.version
    return found


def hold() -> None:
    """Answers whether there is a card. An idle context keeps a GPU without persistence mode initialised."""
    try:
        driver = Driver()
        if driver.attribute(ATTRIBUTES["compute mode"]) == 0:
            context = ctypes.c_void_p()
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), driver.device)
    except OSError as problem:
        print(f"there is no GPU that can be used: {problem}", flush=True)
        return
    print("yes", flush=True)
    sys.stdin.read()


def main() -> None:
    if sys.argv[1:] == ["hold"]:
        return hold()
    for facts in (of_the_card(), of_the_driver(), of_the_machine(), of_torch()):
        for name, value in facts.items():
            print(f"{name}: {value}", flush=True)
            append(results(), fact=name, value=value)


if __name__ == "__main__":
    main()
