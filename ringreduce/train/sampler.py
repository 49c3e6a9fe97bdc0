"""Which samples each rank takes: the same global batches whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from ringreduce.train.config import ConfigError

__all__ = ["ShardedSampler"]


class ShardedSampler(Sampler[list[int]]):
    """A rank's parts of the global batches, from a position on and without end.

    Each epoch is one permutation of all samples, made from the seed and the epoch's number; it is cut into global
    batches, each of these into equal parts in rank order, and each part into micro-batches. No rank needs to be
    told anything: all compute the same permutation. Samples that fill no global batch are left out of an epoch (others
    in each), or, with ``pad``, the epoch's first samples fill the last batch: the two rules of torch's
    DistributedSampler, applied to the batch instead of the number of ranks, so that the latter changes nothing.

    As a ``batch_sampler`` of torch's DataLoader it gives the indices of one micro-batch at a time.

    Args:
        samples: how many there are.
        batch: samples of a global batch.
        micro_batches: parts into which each rank's part is cut.

    Raises:
        ConfigError: the batch cannot be cut so, or there are fewer samples than it needs.
    """

    def __init__(
        self, samples: int, batch: int, rank: int = 0, size: int = 1, *, micro_batches: int = 1, seed: int = 0,
        shuffle: bool = True, pad: bool = False, first_batch: int = 0,
    ) -> None:  # fmt: skip
        if batch % (size * micro_batches):
            raise ConfigError(
                f"batch: {batch} samples cannot be cut for {size} ranks x {micro_batches} micro-batches"
            )
        if samples < (1 if pad else batch):
            raise ConfigError(f"batch: {batch} samples are wanted, but there are {samples} in all")
        self.samples, self.batch, self.rank, self.size = samples, batch, rank, size
        self.micro_batches, self.seed, self.shuffle, self.pad = micro_batches, seed, shuffle, pad
        self.first_batch = first_batch

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.samples // self.batch) if self.pad else self.samples // self.batch

    def order(self, epoch: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """The epoch's samples, int64 [global batches, batch]."""
        count = self.batches_per_epoch * self.batch
        order = np.arange(self.samples)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        return (
            np.resize(order, (self.batches_per_epoch, self.batch))
            if self.pad
            else order[:count].reshape(-1, self.batch)
        )

    def __iter__(self) -> Iterator[list[int]]:
        epoch, skip = divmod(self.first_batch, self.batches_per_epoch)
        while True:
            for batch in self.order(epoch)[skip:]:
                mine = np.split(batch, self.size)[self.rank]
                yield from (part.tolist() for part in np.split(mine, self.micro_batches))
            epoch, skip = epoch + 1, 0
