"""The parts that `make card` runs on a GPU, in order of value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMULATED_LIBRARY = ROOT / "build" / "tests" / "libringreduce_cuda_emulated.so"
ON_EMULATED_GPU = {
    **{"RINGREDUCE_CUDA_LIBRARY": str(EMULATED_LIBRARY), "RINGREDUCE_EMULATED_BLOCKS": "16"},
    "RINGREDUCE_NCCL_LIBRARY": "",
}


@dataclass(frozen=True)
class Part:
    """A command and its time limit in seconds.

    In the command, {python} stands for this Python, and {junit} and {json} for files for its results.
    """

    name: str
    command: tuple[str, ...]
    limit: float
    environment: tuple[tuple[str, str], ...] = ()


# The options of `make test-gpu`: a test that hangs ends its worker, and a new worker runs the next test.
PYTEST = "-m pytest -v -n 1 --dist load --max-worker-restart 1000 -p no:cacheprovider --junitxml={junit}"

# The tests of tests/gpu that run first, and those that say nothing about a card or belong to another part.
FIRST = ["card", "combine", "ranks", "captures", "communicator", "runners", "processes", "coded"]
ELSEWHERE = ["bench", "emulated_library", "interpreter", "make", "make_card", "nccl_messages", "without_card"]
NCCL = ["nccl_alone", "nccl", "nccl_groups"]
LIMITS = {"communicator": 150, "ranks": 150, "processes": 120}  # 90 for the others
SANITIZED = ["card", "combine", "coded", "ranks"]
NOT_SANITIZED = "not 4_GiB and not large and not errors"


def python(name: str, arguments: str, limit: float, more: tuple[str, ...] = (), **environment: str) -> Part:
    return Part(name, ("{python}", *arguments.split(), *more), limit, tuple(environment.items()))


def test_files() -> list[str]:
    names = [file.stem.removeprefix("test_") for file in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    rest = [name for name in names if name not in FIRST + ELSEWHERE + NCCL]
    return [name for name in FIRST if name in names] + rest


def tests(emulated: bool) -> list[Part]:
    torch = "tests/torch/test_cuda_emulated.py" if emulated else "tests/torch/test_cuda.py"
    nccl = " ".join(f"tests/gpu/test_{name}.py" for name in NCCL[: 1 if emulated else None])
    return [
        *(
            python(f"tests/gpu, {name}", f"{PYTEST} tests/gpu/test_{name}.py", LIMITS.get(name, 90))
            for name in test_files()
        ),
        python("torch", f"{PYTEST} {torch}", 180, ("-k", "not ddp and not fsdp2")),
        python("NCCL, one rank", f"{PYTEST} {nccl}", 120),
    ]


def benchmarks(emulated: bool) -> list[Part]:
    reduce, sizes, environment = "", "512,8K,64K,1M,16M,64M,256M", {}
    how = "--rounds=20 --algorithms=auto,one_shot,two_shot,ring"
    if emulated:
        reduce = " --bytes=64K --sources=2,3 --dtypes=float32 --wires=int8 --rounds=2"
        sizes, how = "4K", "--copy=64K --calls=2 --rounds=2 --algorithms=auto"
        environment = ON_EMULATED_GPU
    return [
        python("reduce kernels", f"bench/gpu_reduce.py --json={{json}}{reduce}", 120, **environment),
        *(
            python(
                f"all-reduce, {ranks} ranks",
                f"bench/gpu_all_reduce.py --ranks={ranks} --sizes={sizes} --json={{json}} {how}",
                180,
                **environment,
            )
            for ranks in (4, 2, 8)
        ),
    ]


# They run if the environment variable NCCL_TESTS names the folder in which they are built.
NCCL_TESTS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
]
NCCL_TESTS += ["sendrecv", "alltoallv", "hypercube"]


def nccl_tests() -> list[Part]:
    folder = os.environ.get("NCCL_TESTS")
    instead = (("LD_PRELOAD", str(ROOT / "ringreduce" / "libringreduce_nccl.so")),)
    how = ("-g", "1", "-b", "8", "-e", "64M", "-f", "8", "-c", "1")
    return [
        Part(f"nccl-tests, {name}", (f"{folder}/{name}_perf", *how), 30, instead)
        for name in NCCL_TESTS
        if folder
    ]


def under_sanitizers() -> list[Part]:
    return [
        Part(
            f"{tool}, {name}",
            (
                *f"compute-sanitizer --tool {tool} --target-processes all --error-exitcode 1".split(),
                *f"{{python}} {PYTEST} tests/gpu/test_{name}.py -k".split(),
                NOT_SANITIZED,
            ),
            180,
        )
        for tool in ("memcheck", "racecheck")
        for name in SANITIZED
    ]


def parts_for(emulated: bool) -> list[Part]:
    return [
        python("what blocks", "-m tests.gpu.blocking" + " --emulated" * emulated, 60),
        *tests(emulated),
        *benchmarks(emulated),
        *([] if emulated else nccl_tests()),
        python("DDP and FSDP2", f"{PYTEST} tests/torch/test_cuda.py", 120, ("-k", "ddp or fsdp2")),
        *under_sanitizers(),
    ]
