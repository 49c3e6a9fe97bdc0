"""Measures the accuracy that quantised messages cost and the bytes that they save, as Markdown tables.

    python3 -m bench.engine.wire
    python3 -m bench.engine.wire --ranks 3,16 --count 10000

Ranks are threads. Each draws values from a normal distribution and all-reduces them. An error is the distance of a
result from the float64 sum of the ranks' values, relative to the root mean square of these sums. A cell shows the
largest error of all elements, and their root mean square. The seeds are fixed, so every run gives the same tables. The
second table is for arrays of 16-bit floats. It compares with the sums of the rounded values.
"""

from __future__ import annotations

from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

import ringreduce
from ringreduce import _engine
from ringreduce.text import markdown

WIRES = tuple(_engine.reduce.wires()[1:])
ALGORITHMS = ("two_shot", "one_shot", "halving_doubling", "recursive_doubling", "ring")
"""Sorted from algorithms that round once on each side to the one that rounds at each of n - 1 hops."""


NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
NARROW_WIRES = ("int8", "fp8")
"""The wire formats that are measured for arrays of these types."""


def values(count: int, rank: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng([1, rank]).standard_normal(count).astype(np.float32).astype(dtype)


def rounding_errors(
    count: int, ranks: int, dtype: Any = np.float32, wires: tuple[str, ...] = WIRES
) -> dict[tuple[str | None, str], Any]:
    """Returns the errors of the elements by wire format (None: not quantised) and algorithm."""
    group = ringreduce.local_group(ranks)
    parts = [values(count, rank, dtype) for rank in range(ranks)]
    exact = sum(part.astype(np.float64) for part in parts)
    unit = np.sqrt(np.mean(exact**2))
    found = {}
    with ThreadPoolExecutor(ranks) as pool:
        for wire in (None, *wires):
            for algorithm in ALGORITHMS:
                works = [
                    pool.submit(comm.all_reduce, parts[comm.rank].copy(), algorithm=algorithm, wire=wire)
                    for comm in group
                ]
                result, *_ = [work.result() for work in works]
                found[wire, algorithm] = np.abs(result.astype(np.float64) - exact) / unit
        list(pool.map(lambda comm: comm.close(), group))
    return found


def cell(errors: Any) -> str:
    return f"{errors.max():.1e}, {np.sqrt(np.mean(errors**2)):.1e}"


def error_table(worlds: list[int], count: int) -> str:
    found = {ranks: rounding_errors(count, ranks) for ranks in worlds}
    rows = [["wire", "ranks", *ALGORITHMS]]
    for wire in (None, *WIRES):
        for ranks in worlds:
            cells = [cell(found[ranks][wire, algorithm]) for algorithm in ALGORITHMS]
            rows.append([wire or "float32", str(ranks), *cells])
    return markdown(rows)


def narrow_table(worlds: list[int], count: int) -> str:
    rows = [["array", "wire", "ranks", *ALGORITHMS]]
    for dtype in NARROW:
        found = {ranks: rounding_errors(count, ranks, dtype, NARROW_WIRES) for ranks in worlds}
        for wire in (None, *NARROW_WIRES):
            for ranks in worlds:
                cells = [cell(found[ranks][wire, algorithm]) for algorithm in ALGORITHMS]
                rows.append([dtype.name, wire or "none", str(ranks), *cells])
    return markdown(rows)


def bytes_table(worlds: list[int]) -> str:
    """Returns a table of the bytes that a rank sends for every 4 bytes of its buffer, in full blocks."""
    count = 1 << 20
    a_value = {wire: _engine.reduce.encoded_bytes(wire or "none", count) / count for wire in (None, *WIRES)}
    rows = [["algorithm", "ranks", *(wire or "float32" for wire in a_value)]]
    for algorithm in ALGORITHMS:
        for ranks in worlds:
            _, sent, _ = _engine.schedules.algorithm_cost("all_reduce", algorithm, ranks)
            rows.append([algorithm, str(ranks), *(f"{sent * each:.2f}" for each in a_value.values())])
    return markdown(rows)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--count", type=int, default=1 << 16, help="elements (65,536)")
    options = parser.parse_args()
    tables = (error_table, narrow_table)
    print("\n\n".join(table(options.ranks, options.count) for table in tables))
    print("\n" + bytes_table(options.ranks))


if __name__ == "__main__":
    main()
