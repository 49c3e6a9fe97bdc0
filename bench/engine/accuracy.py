"""Measures the errors of sums compared with float64, for ringreduce and Gloo, as a Markdown table.

    python3 -m bench.engine.accuracy
    python3 -m bench.engine.accuracy --ranks 2,16 --dtypes bfloat16 --count 100000

Every rank draws values, rounds them to the dtype, and all-reduces them. The error of an element is the distance of the
result from the float64 sum of the rounded values, relative to the sum of their magnitudes. (If no value is negative,
that is the sum itself. Errors relative to the sum would be dominated by values that cancel to about zero.) A cell shows
the largest error of any element, and the root mean square of the errors.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

import ringreduce
from ringreduce.bench.problem import numpy_dtype
from ringreduce.text import markdown

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DRAWS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "uniform(-1, 1)": lambda draw, count: draw.uniform(-1, 1, count),
    "lognormal(0, 1)": lambda draw, count: draw.lognormal(0, 1, count),
}
OURS = ("auto", "ring", "reproducible")
COLUMNS = (*OURS, "Gloo")

Errors = dict[tuple[str, str, str], str]  # the text of each cell, by dtype, distribution and column


def error(result: Any, parts: list[Any]) -> str:
    wide = [part.astype(np.float64) for part in parts]
    magnitudes: Any = sum(np.abs(part) for part in wide)
    far: Any = np.abs(result.astype(np.float64) - sum(wide)) / np.where(magnitudes == 0, 1, magnitudes)
    return f"{far.max():.1e}, {np.sqrt(np.mean(far**2)):.1e}"


def sums_by_gloo(mine: Any) -> Any:
    """Returns the sum. If Gloo does not support the dtype, torch's exception is raised."""
    import torch
    import torch.distributed as dist

    dtype = getattr(torch, str(mine.dtype))
    tensor = torch.from_numpy(mine.view(f"u{mine.dtype.itemsize}").view("uint8")).clone().view(dtype)
    dist.all_reduce(tensor)
    return tensor.view(torch.uint8).numpy().view(mine.dtype)


def cell(name: str, mine: Any, parts: list[Any], twins: dict[str, ringreduce.Communicator]) -> str:
    if name in OURS:
        algorithm = name if name == "ring" else "auto"
        return error(twins[name].all_reduce(mine.copy(), algorithm=algorithm), parts)
    try:
        return error(sums_by_gloo(mine), parts)
    except (RuntimeError, ValueError, TypeError) as reason:
        return f"refused: {str(reason).splitlines()[0]}"


def rank_main(usual: ringreduce.Communicator, folder: str, options: Namespace) -> Errors:
    from ringreduce.bench import gloo

    errors: Errors = {}
    name = f"accuracy/{folder}"
    with ringreduce.init(usual.rank, usual.size, name, reproducible=True) as reproducible:
        twins = {"auto": usual, "ring": usual, "reproducible": reproducible}
        gloo.join(usual.rank, usual.size, f"{folder}/store-{usual.size}")
        for dtype in options.dtypes:
            for distribution, draw in DRAWS.items():
                parts = [
                    draw(np.random.default_rng([options.seed, rank]), options.count)
                    .astype(np.float32)
                    .astype(numpy_dtype(dtype))
                    for rank in range(usual.size)
                ]
                for column in COLUMNS:
                    errors[dtype, distribution, column] = cell(column, parts[usual.rank], parts, twins)
                    usual.barrier()
        import torch.distributed as dist

        dist.destroy_process_group()
    return errors


def table(found: dict[int, Errors], dtypes: list[str]) -> str:
    rows, reasons = [["dtype", "values", "ranks", *COLUMNS]], set()
    for dtype in dtypes:
        for distribution in DRAWS:
            for ranks, errors in found.items():
                cells = [errors[dtype, distribution, column] for column in COLUMNS]
                reasons |= {f"Gloo, {dtype}: {text}" for text in cells if text.startswith("refused")}
                rows.append([dtype, distribution, str(ranks), *(text.split(":")[0] for text in cells)])
    return "\n\n".join([markdown(rows), *sorted(reasons)])


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(DTYPES))
    parser.add_argument("--count", type=int, default=1 << 18, help="elements (262,144)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.environ.get("RINGREDUCE_REPRODUCIBLE") == "1":
        parser.error("the column auto measures the default mode; unset RINGREDUCE_REPRODUCIBLE")
    with tempfile.TemporaryDirectory() as folder:
        found = {n: ringreduce.run(rank_main, n, folder, options)[0] for n in options.ranks}
    print(table(found, options.dtypes))


if __name__ == "__main__":
    main()
