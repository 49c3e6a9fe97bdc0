"""What the ranks tell each other at the end of a backward pass: who has failed, and which parameters were used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import gather_texts

__all__ = ["Verdict", "some_names"]

SHOWN = 10  # names in a message


class Verdict:
    """An exchange of one byte, and of one more for each parameter where it has to be known which were used.

    Args:
        problem: what has gone wrong on this rank; "" if nothing.
        used: for each parameter whether this rank has a gradient of it. None on all ranks: nobody asks.
    """

    def __init__(self, comm: Communicator, problem: str, used: Sequence[bool] | None) -> None:
        self._comm = comm
        self._problem = problem
        self._flags = np.array([problem != "", *(used or ())], np.uint8)
        self._work = comm.all_reduce(self._flags, "max", async_op=True)

    def wait(self) -> None:
        self._work.wait()

    @property
    def used_by_any(self) -> set[int]:
        """The numbers of parameters of which some rank has a gradient."""
        return set(np.flatnonzero(self._flags[1:]).tolist())

    def problems(self) -> str:
        """What has gone wrong on which ranks; "" if nothing. The same on all ranks, which all call it."""
        if not self._flags[0]:
            return ""
        texts = gather_texts(self._comm, self._problem)
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)


def some_names(names: Sequence[str]) -> str:
    """Names for a message: the first few, and how many there are beside them."""
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
