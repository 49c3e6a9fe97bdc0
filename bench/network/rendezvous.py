"""A rendezvous for the ranks of a network benchmark, in a folder, because all hosts are on one machine.

The ranks meet at once and without using the network that is measured. A barrier over the network would release ranks
as far apart in time as its last message travels.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

PATIENCE = 120.0  # seconds for all ranks to come
POLL = 1e-3


class Rendezvous:
    """A rendezvous. Each rank creates one, all with the same new folder."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.ranks, self._folder = rank, ranks, folder
        self._serial = count()
        self._pipes = [self._pipe(other) for other in range(ranks)]
        self.exchange(b"")  # wait until all pipes exist

    def _pipe(self, rank: int) -> int:
        path = self._folder / f"pipe{rank}"
        with suppress(FileExistsError):
            os.mkfifo(path)
        return os.open(path, os.O_RDWR)  # opening both ends does not block

    def exchange(self, blob: bytes) -> list[bytes]:
        """Returns the blobs of all ranks, in rank order."""
        serial = next(self._serial)
        mine = self._folder / f"blob{serial}-{self.rank}"
        mine.with_suffix(".new").write_bytes(blob)
        mine.with_suffix(".new").rename(mine)  # so that no rank reads half of it
        return [self._wait_for(self._folder / f"blob{serial}-{rank}") for rank in range(self.ranks)]

    def _wait_for(self, path: Path) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                time.sleep(POLL)
        raise TimeoutError(f"{path.name} did not come in {PATIENCE:.0f} s")

    def barrier(self) -> None:
        """Waits for all ranks. It sleeps instead of spinning, because the hosts share the cores of this machine."""
        if self.rank:
            os.write(self._pipes[0], b"a")
            os.read(self._pipes[self.rank], 1)
            return
        missing = self.ranks - 1
        while missing:
            missing -= len(os.read(self._pipes[0], missing))
        for pipe in self._pipes[1:]:
            os.write(pipe, b"g")

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Returns the elementwise maximum over all ranks, as float64."""
        blobs = self.exchange(np.asarray(values, dtype=np.float64).tobytes())
        result: np.ndarray = np.max([np.frombuffer(blob) for blob in blobs], axis=0)
        return result
