"""The command ``ringreduce bench``."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

from ringreduce.plotting import pyplot
from ringreduce.start.launchers import launched
from ringreduce.studies.bench.compare import SIZES, compare
from ringreduce.studies.bench.contest import run_on_launched_ranks, run_on_own_ranks, under_launcher
from ringreduce.studies.bench.options import plan
from ringreduce.studies.bench.plot import plot
from ringreduce.studies.bench.report import FORMATS
from ringreduce.studies.bench.reproducible import LAUNCHES, cost
from ringreduce.studies.bench.results import Results
from ringreduce.text import sizes

__all__ = ["DESCRIPTION", "run"]

DESCRIPTION = """\
Times collectives, and compares them with their floor and with the peers that are installed.

  ringreduce bench -n 2                               all_reduce, 8 B to 16 MiB, on two new ranks
  ringreduce bench -n 4 -a all --plot all.png         every algorithm
  mpirun -n 8 ringreduce bench -c all_gather          on the ranks of a launcher
  mpirun -n 4 ringreduce bench --transport mpi,tcp,shm --format osu       each transport, and MPI's own call
  ringreduce bench -a my.py:ring_of_pairs,ring,auto   your own algorithm, and two of the library's
  ringreduce bench -c send_recv,send,barrier          latency and bandwidth of messages, and a barrier
  ringreduce bench --compare                          the whole comparison, in about two minutes
  ringreduce bench --reproducible                     the cost of reproducible results, on 2 and on 4 ranks

Every rank rewrites its whole buffer before each iteration, outside the timed part. A time is the median over the
iterations of the slowest rank's time. The spread is the range of the launches, or the distance between the
quartiles if there was one launch. The floor is the time that the ranks need, all at once, to read and write their
own buffers once. The floor column shows it in per cent of the algorithm's time. Bandwidths are defined as in
nccl-tests. Compare only figures that were measured in the same mode (near or far), while other programs left the cores
alone. Ranks that share a core give way to each other, and to other programs, which keep it for milliseconds: on a busy
machine, a barrier of 4 ranks on 2 cores takes 30 us instead of 3.

gather_v, all_to_all_v and so on are the forms with counts, for blocks of different lengths. An all-to-all has another
buffer for its result, also with --in-place.

For point-to-point operations, a time is the time of one message. send_recv is half of a round trip between ranks 0
and 1, and send is a stream of messages from rank 0 to rank 1. In send_recv_pairs and send_pairs, each rank of the
first half does this with one of the second half, all at once. --format osu prints what OSU's benchmarks print with
-f: it times every call separately, averages the times of each rank, and prints the average, minimum and maximum of
these averages.

my.py:name is a function (world, rank) -> Schedule, or a value that register() returned there. See
docs/algorithms.md.
"""


def run(options: Namespace) -> int:
    """Runs the command, and returns the exit status: 1 if results were wrong or there are none.

    Raises:
        ValueError: An option is invalid.
    """
    known = launched(os.environ) if under_launcher() else None
    peers = () if "none" in options.peers else tuple(options.peers)
    if options.compare or options.reproducible:
        if known is not None:
            name = "--compare" if options.compare else "--reproducible"
            raise ValueError(f"{name} starts its own ranks; run it without a launcher")
        worlds = (2, 4) if options.ranks is None else (options.ranks,)
    if options.reproducible:
        chosen = tuple(sizes(options.sizes or "")) or SIZES
        everything = cost(options.budget, worlds, chosen, options.launches or LAUNCHES)
        return max(map(_judged, everything))
    if options.compare:
        folder = options.output or Path("bench") / "results"
        return max(map(_judged, compare(peers, options.budget, folder, worlds)))
    if known is not None and options.ranks not in (None, known.size):
        raise ValueError(f"--ranks: {known.launcher} has started {known.size} ranks, not {options.ranks}")
    ranks = known.size if known else 2 if options.ranks is None else options.ranks
    asked = plan(options, ranks)
    if options.plot:
        pyplot()  # fails before minutes are spent on measurements that cannot be plotted
    results = run_on_launched_ranks(asked) if known else run_on_own_ranks(asked)
    if known is None or known.rank == 0:
        print(FORMATS[options.format](results), flush=True)
        if options.plot and results.measured():
            print(f"Plot: {plot(results, options.plot)}", file=sys.stderr)
        return _judged(results)
    return int(results.wrong() > 0 or not results.measured())


def _judged(results: Results) -> int:
    """Returns the exit status: 1 if results were wrong or there are none. In the latter case, prints why."""
    if not results.measured():
        why = "; ".join(results.notes) or "there was nothing to measure"
        print(f"ringreduce: nothing was measured: {why}", file=sys.stderr)
        return 1
    return int(results.wrong() > 0)
