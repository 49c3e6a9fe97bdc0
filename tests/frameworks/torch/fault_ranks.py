"""Rank processes of a torch.distributed group that may die or disagree, and what became of each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes import Processes, within

BACKEND = os.environ.get("RINGREDUCE_TEST_BACKEND", "ringreduce")  # another one: to see what it does instead

# Ranks are forked from a process that has imported torch, and all that the tests import, and started no thread.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.frameworks.torch.preloaded"])


class Outcome(NamedTuple):
    """What a rank raised or, if nothing, returned."""

    value: Any = None
    kind: str = ""
    text: str = ""
    at: float = 0.0  # time.monotonic(), which all processes share


class Ranks(Processes):
    """Processes, each of which joins the group and calls ``function(note, *args)``.

    ``note()`` tells the test that the rank has come so far.
    """

    def __init__(
        self, folder: Path, function: Callable[..., Any], count: int, *args: Any, timeout: float = 60.0
    ) -> None:
        self.notes = _context.Array("d", count, lock=False)
        store = str(folder / f"store-{time.monotonic_ns()}")
        places = [(function, (rank, count, store, timeout), self.notes, args) for rank in range(count)]
        super().__init__(_context, _main, places)

    def wait_for_notes(self) -> None:
        self.wait_until_all(lambda rank: self.notes[rank] != 0)

    def assert_lost(self) -> None:
        """Every survivor got, soon enough, an error that names the one dead rank."""
        ((dead, since),) = self.dead.items()
        for rank, outcome in enumerate(self.outcomes()):
            if rank == dead:
                continue
            assert outcome is not None, f"rank {rank} died too"
            assert names_lost(outcome, dead), (rank, outcome)
            assert outcome.at - since < within(), f"rank {rank} needed {outcome.at - since:.2f} s"


def names_lost(outcome: Outcome, dead: int) -> bool:
    """Whether this is an error about the death of that rank and of no other."""
    lost = re.findall(r"rank (\d+) (?:died|was interrupted|left|has closed|closed)", outcome.text)
    return bool(outcome.kind) and set(lost) == {str(dead)}


def _main(function: Callable[..., Any], place: tuple[Any, ...], notes: Any, args: Any, pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    rank, count, store, timeout = place
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

    def note() -> None:
        notes[rank] = time.monotonic()

    try:
        dist.init_process_group(
            BACKEND,
            init_method=f"file://{store}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout),
        )
        outcome = Outcome(function(note, *args))
    except (Exception, KeyboardInterrupt) as error:
        outcome = Outcome(None, type(error).__name__, str(error), time.monotonic())
    pipe.send_bytes(pickle.dumps(outcome))
    pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()
