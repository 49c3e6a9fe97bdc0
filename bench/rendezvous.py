"""How the ranks of a network benchmark meet: in a folder, because all hosts are on one machine.

So they meet at once and without the network, whatever is measured on it: a barrier over the network lets its
ranks go as far apart as its last message travels.
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
    """One per rank, all with the same new folder."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.rank, self.ranks, self._folder = rank, ranks, folder
        self._serial = count()
        self._pipes = [self._pipe(other) for other in range(ranks)]
        self.exchange(b"")  # all pipes are there

    def _pipe(self, rank: int) -> int:
        path = self._folder / f"pipe{rank}"
        with suppress(FileExistsError):
            os.mkfifo(path)
        return os.open(path, os.O_RDWR)  # for both, so that nobody waits here for the other end

    def exchange(self, blob: bytes) -> list[bytes]:
        """Everybody's blob, in rank order."""
        serial = next(self._serial)
        mine = self._folder / f"blob{serial}-{self.rank}"
        mine.with_suffix(".new").write_bytes(blob)
        mine.with_suffix(".new").rename(mine)  # so that nobody reads half of it
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
        """Asleep, not spinning: hosts have to share the cores here, which they would not have to elsewhere."""
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
        """Element by element over all ranks; float64."""
        blobs = self.exchange(np.asarray(values, dtype=np.float64).tobytes())
        result: np.ndarray = np.max([np.frombuffer(blob) for blob in blobs], axis=0)
        return result
