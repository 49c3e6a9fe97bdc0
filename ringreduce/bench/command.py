"""``ringreduce bench``."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from ringreduce.bench.compare import SIZES, compare
from ringreduce.bench.options import plan, sizes
from ringreduce.bench.plot import plot
from ringreduce.bench.report import FORMATS
from ringreduce.bench.reproducible import LAUNCHES, cost
from ringreduce.bench.results import Results
from ringreduce.bench.run import run_on_launched_ranks, run_on_own_ranks, under_launcher
from ringreduce.plotting import pyplot
from ringreduce.start.launchers import launched

__all__ = ["DESCRIPTION", "run"]

DESCRIPTION = """\
Times collectives beside their floor and the peers that are installed.

  ringreduce bench -n 2                               all_reduce, 8 B to 16 MiB, on two ranks of its own
  ringreduce bench -n 4 -a all --plot all.png         every algorithm
  mpirun -n 8 ringreduce bench -c all_gather          on the launcher's ranks
  mpirun -n 4 ringreduce bench --transport mpi,tcp,shm --format osu       each transport, beside MPI's own call
  ringreduce bench -a my.py:ring_of_pairs,ring,auto   an algorithm of your own beside the library's
  ringreduce bench -c send_recv,send,barrier          latency and bandwidth of messages, and a barrier
  ringreduce bench --compare                          the whole comparison, in about two minutes
  ringreduce bench --reproducible                     what reproducible results cost, on 2 and on 4 ranks

Every rank rewrites its whole buffer before each iteration, outside the timed part. A time is the median over
iterations of the slowest rank's; the spread is the distance of the launches, or of the quartiles if there was
one launch. The floor is the time that the ranks need, all at once, to read and write their own buffers once; its
column is the floor's time in per cent of the algorithm's. Bandwidths are nccl-tests'. Compare figures only of
runs in one mode (near or far).

Point to point, a time is that of one message: send_recv is half of a round trip between ranks 0 and 1, send a
stream of messages from rank 0 to rank 1. In send_recv_pairs and send_pairs the first half of the ranks does so
with the second half, all at once. --format osu prints what OSU's benchmarks print with -f: every call timed by
itself, and the average, the least and the most over the ranks of each rank's own average.

my.py:name is a function (world, rank) -> Schedule, or what register() has returned there; docs/algorithms.md.
"""


def run(options: Namespace) -> int:
    """Returns the exit status: 1 if results were wrong or there are none. Raises ValueError for a bad option."""
    known = launched(os.environ) if under_launcher() else None
    if options.plot:
        pyplot()  # before minutes are spent on what cannot be shown then
    peers = () if "none" in options.peers else tuple(options.peers)
    if options.compare or options.reproducible:
        if known is not None:
            name = "--compare" if options.compare else "--reproducible"
            raise ValueError(f"{name} starts its own ranks: run it without a launcher")
        worlds = (2, 4) if options.ranks is None else (options.ranks,)
    if options.reproducible:
        chosen = tuple(sizes(options.sizes or "")) or SIZES
        everything = cost(options.budget, worlds, chosen, options.launches or LAUNCHES)
        return max(map(_judged, everything))
    if options.compare:
        folder = options.output or Path("bench") / "results"
        return max(map(_judged, compare(peers, options.budget, folder, worlds)))
    if known is not None and options.ranks not in (None, known.size):
        raise ValueError(f"--ranks: {known.launcher} has started {known.size}")
    ranks = known.size if known else 2 if options.ranks is None else options.ranks
    asked = plan(options, ranks)
    results = run_on_launched_ranks(asked) if known else run_on_own_ranks(asked)
    if known is None or known.rank == 0:
        print(FORMATS[options.format](results), flush=True)
        if options.plot and results.measured():
            print(f"Plot: {plot(results, options.plot)}", file=sys.stderr)
        return _judged(results)
    return int(results.wrong() > 0 or not results.measured())


def _judged(results: Results) -> int:
    """The exit status: 1 if results were wrong, or there are none, which a line says then."""
    if not results.measured():
        why = "; ".join(results.notes) or "there was nobody to measure"
        print(f"ringreduce: nothing was measured: {why}", file=sys.stderr)
        return 1
    return int(results.wrong() > 0)
