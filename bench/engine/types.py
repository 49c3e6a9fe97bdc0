"""Times all_reduce of every dtype, as a multiple of float32 of as many bytes.

    python3 -m bench.engine.types [--ranks 2] [--sizes 4K,64K,1M,4M,32M] [--ops sum,max,prod]

Each rank's array is from ringreduce.empty and in place. The dtypes take turns, so that all of them meet the same state
of the machine: a time is that of four calls after a barrier, and a figure the median of its rounds on rank 0.
"""

from __future__ import annotations

import argparse
import statistics
import time

import ml_dtypes
import numpy as np

import ringreduce
from ringreduce.text import byte_count, names, sizes

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8"),
)
CALLS, WARM = 4, 5


def takes(op: str, dtype: str) -> bool:
    return op in ("sum", "prod") or not dtype.startswith("complex")


def seconds(comm: ringreduce.Communicator, op: str, size: int) -> dict[str, float]:
    """Returns the median time of a call for each dtype that takes the op."""
    arrays = {}
    for name in DTYPES:
        if takes(op, name):
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            arrays[name] = ringreduce.empty(max(size // dtype.itemsize, 1), dtype)
            arrays[name][:] = 1
    took: dict[str, list[float]] = {name: [] for name in arrays}
    for number in range(WARM + max(15, min(300, (256 << 20) // size))):
        for name, array in arrays.items():
            array[:] = 1  # sums would overflow, and products with subnormal numbers take longer
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(CALLS):
                comm.all_reduce(array, op)  # type: ignore[arg-type]
            if number >= WARM:
                took[name].append((time.perf_counter() - begin) / CALLS)
    return {name: statistics.median(times) for name, times in took.items()}


def measure(comm: ringreduce.Communicator, wanted: list[int], ops: list[str]) -> list[dict[str, float]]:
    return [seconds(comm, op, size) for size in wanted for op in ops]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--sizes", type=sizes, default=[byte_count(one) for one in ("4K", "64K", "1M", "4M", "32M")]
    )
    parser.add_argument("--ops", type=names, default=["sum", "max", "prod"])
    options = parser.parse_args()
    found = ringreduce.run(measure, options.ranks, options.sizes, options.ops)[0]
    others = DTYPES[1:]
    print(f"| bytes | op | float32, us | {' | '.join(others)} |\n|--:|---|{'--:|' * len(DTYPES)}")
    for (size, op), times in zip(
        ((size, op) for size in options.sizes for op in options.ops), found, strict=True
    ):
        ratios = (f"{times[name] / times['float32']:.2f}" if name in times else "" for name in others)
        print(f"| {size:,} | {op} | {times['float32'] * 1e6:.1f} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
