"""Times calls and the writes that follow them, with readers that take lines over and without, in turns.

    python3 -m bench.engine.rewriting --want far

Peers read shared memory in place, and its owner writes it again before the next call. Between cores that share no
cache, these writes take longer than the call (docs/decisions.md). Processors change between near and far by
themselves: --want waits for one of them, and each row says which it was.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import ringreduce
from ringreduce import _engine
from ringreduce.bench.facts import mode_of
from ringreduce.text import human_bytes, human_us, markdown, sizes

# From so many ns for a line on, readers take lines over: the engine's own value, and never.
CONTESTANTS = {"left": 1e9, "taken": 7.0}
ROUNDS, FIRST = 120, 80  # of which the first are not counted: the engine learns
PATIENCE = 120.0  # seconds


def cases(
    comm: ringreduce.Communicator, nbytes: int
) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Returns for each case the call, and what its caller does with the memory before the next one."""
    count = nbytes // 4 // comm.size
    x, y, out = (ringreduce.empty(count * comm.size, "float32") for _ in range(3))
    block = ringreduce.empty(count, "float32")
    mine = np.asarray(out)[comm.rank * count :][:count]
    for array in (x, y, out, block):
        array[:] = 1
    return {
        "reduce_scatter": (lambda: comm.reduce_scatter(x, out=block), lambda: np.asarray(x).fill(1)),
        "all_gather, in place": (lambda: comm.all_gather(mine, out=out), lambda: mine.fill(1)),
        "all_to_all": (lambda: comm.all_to_all(x, out=out), lambda: np.asarray(x).fill(1)),
        "all_reduce": (lambda: comm.all_reduce(x, out=out), lambda: np.asarray(x).fill(1)),
        "all_reduce, in place": (lambda: comm.all_reduce(y), lambda: np.asarray(y).fill(1)),
        "reduce_scatter, read only": (lambda: comm.reduce_scatter(x, out=block), lambda: np.asarray(x).sum()),
    }


def rank_main(
    comm: ringreduce.Communicator, nbytes: list[int], first: int
) -> list[tuple[str, int, str, float, float]]:
    rows = []
    names = list(CONTESTANTS)[first:] + list(CONTESTANTS)[:first]
    for size in nbytes:
        for case, (call, between) in cases(comm, size).items():
            for name in names:
                _engine.take_lines_from(CONTESTANTS[name])
                times = []
                for _ in range(ROUNDS):
                    comm.barrier()
                    start = time.perf_counter()
                    between()
                    done = time.perf_counter()
                    comm.barrier()
                    begin = time.perf_counter()
                    call()
                    times.append((1e6 * (time.perf_counter() - begin), 1e6 * (done - start)))
                called, written = (median(one) for one in zip(*times[FIRST:], strict=True))
                rows.append((case, size, name, called, written))
    return rows


def wait_for(mode: str) -> float | None:
    end = time.monotonic() + PATIENCE
    while True:
        exchange = _engine.probe_exchange()
        if mode == "any" or mode_of(exchange, exchange) == mode or time.monotonic() > end:
            return exchange
        time.sleep(0.5)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=sizes, default=sizes("64K,512K,4M,16M"))
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--want", choices=("any", "near", "far"), default="any")
    options = parser.parse_args()
    found: dict[tuple[str, str, int], dict[str, list[tuple[float, float]]]] = {}
    for launch in range(options.launches):
        before = wait_for(options.want)
        ranks = ringreduce.run(
            rank_main, options.ranks, options.sizes, launch % len(CONTESTANTS), timeout=60.0
        )
        mode = mode_of(before, _engine.probe_exchange())
        for case, size, name, called, written in ranks[0]:
            found.setdefault((mode, case, size), {}).setdefault(name, []).append((called, written))
    rows = [
        ["cores", "call", "bytes", *(f"{name}: call + write, us" for name in CONTESTANTS), "taken / left"]
    ]
    for (mode, case, size), times in sorted(found.items()):
        middle = {name: [median(one) for one in zip(*some, strict=True)] for name, some in times.items()}
        texts = [" + ".join(map(human_us, middle[name])) for name in CONTESTANTS]
        rows.append(
            [mode, case, human_bytes(size), *texts, f"{sum(middle['taken']) / sum(middle['left']):.2f}"]
        )
    print(markdown(rows))


if __name__ == "__main__":
    main()
