"""Whether a kernel that waits for a peer sees the abort flag in host memory, and what all ranks report.

    python3 bench/gpu/abort_words.py [--emulated]

Of two ranks, one is launched and waits; the flag is set after half a second. Prints the words of both reports.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu import cuda_library
from tests.gpu.ranks import Ranks, emulated_library
from tests.gpu.test_ranks import arrays, errands, parts

LIMIT = 3.0  # seconds for a kernel to see the flag


def words(ranks: Ranks, when: str) -> None:
    for rank in ranks.ranks:
        report = rank.report.contents
        named = {name: getattr(report, name) for name in ("abort", "differs", "overlaps", "begun")}
        done = list(report.done[: rank.boxes.blocks])
        print(f"{when}: rank {rank.rank}: {named}, done {done}", flush=True)


def main() -> int:
    library = emulated_library() if "--emulated" in sys.argv else cuda_library
    ranks = Ranks(library, 2)
    spans = ranks.spans(arrays(2, 1000))
    ranks.launch("direct", errands(ranks, "sum", spans, spans, parts("direct", 2, 1000, 4))[1:])
    time.sleep(0.5)
    words(ranks, "waiting")
    begin = time.monotonic()
    ranks.abort()
    ending = threading.Thread(target=ranks.finish, daemon=True)
    ending.start()
    ending.join(LIMIT)
    words(ranks, f"{1e3 * (time.monotonic() - begin):.0f} ms after the abort flag")
    if ending.is_alive():
        print("the kernel does not see the abort flag", flush=True)
        os._exit(1)  # it still runs
    ranks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
