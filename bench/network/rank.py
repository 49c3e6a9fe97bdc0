"""One rank of a benchmark between hosts, with Gloo or this library. start_ranks.py starts it."""

from __future__ import annotations

import os
import platform
import sys
from argparse import Namespace
from pathlib import Path

from bench.network.rendezvous import Rendezvous

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0


def gloo_rank(options: Namespace, meeting: Rendezvous) -> None:
    sys.path.append(str(ROOT / "ringreduce" / "studies" / "bench"))  # ringreduce itself need not be built
    import gloo
    import protocol
    import torch.distributed as dist

    gloo.join(options.rank, options.ranks, f"{options.folder}/store", interface=options.interface)
    library = protocol.Library(
        "gloo", options.rank, options.ranks, meeting.barrier, meeting.maximum, gloo.prepare
    )
    protocol.measure_sizes(library, options)
    dist.destroy_process_group()


def our_rank(options: Namespace, meeting: Rendezvous) -> None:
    import ringreduce
    from ringreduce.bench import protocol
    from ringreduce.bench.ours import ours
    from ringreduce.bench.rank import without_wire

    # The hosts are on one machine, so ringreduce would otherwise use shared memory between them.
    os.environ["RINGREDUCE_HOST"] = platform.node()
    with ringreduce.init(
        options.rank, options.ranks, meeting.exchange, timeout=TIMEOUT, transport=options.transport or None
    ) as comm:
        algorithm, wire = without_wire(options.algorithm)
        library = ours(comm, algorithm, wire=wire)
        library.barrier, library.maximum = meeting.barrier, meeting.maximum
        protocol.measure_sizes(library, options)
        meeting.barrier()


def parse_arguments() -> Namespace:
    sys.path.append(str(ROOT / "ringreduce" / "studies" / "bench"))
    import protocol

    parser = protocol.parser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--transport", help="for ringreduce only")
    parser.add_argument("--algorithm", default="auto", help="for ringreduce only")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    meeting = Rendezvous(options.rank, options.ranks, options.folder)
    (gloo_rank if options.library == "gloo" else our_rank)(options, meeting)


if __name__ == "__main__":
    main()
