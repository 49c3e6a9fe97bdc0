"""The data, and the sampler that divides it among the ranks.

The data is on every machine that has Python (and scikit-learn for the digits).
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler, TensorDataset

from ringreduce.training.trainer.config import Config, ConfigError

__all__ = ["BYTES", "CLASSES", "ShardedSampler", "Windows", "load_data"]

BYTES, CLASSES = 256, 10
HELD_OUT = 20  # one file in 20 is kept for validation
ELSEWHERE = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


def load_data(config: Config) -> tuple[Dataset[Any], Dataset[Any]]:
    """Returns the training data and the held-out data: pairs (input, target), the same on all ranks."""
    return _text(config) if config.task == "gpt" else _digits()


class Windows(Dataset[Any]):
    """Consecutive windows of text: the bytes as int64 [context], and the byte after each of them as the targets."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text, self.context = np.frombuffer(text, np.uint8), context

    def __len__(self) -> int:
        return max(len(self.text) - 1, 0) // self.context

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        begin = index * self.context
        window = torch.from_numpy(self.text[begin : begin + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


def source_files(folder: Path) -> Iterator[Path]:
    """Yields the Python files of the standard library, in an order that is the same on every machine."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir() and path.name not in ELSEWHERE:
            yield from source_files(path)
        elif path.suffix == ".py":
            yield path


def _text(config: Config) -> tuple[Windows, Windows]:
    """Returns windows of the first ``config.text_bytes`` bytes. One file in 20 is held out."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = config.text_bytes
    for number, path in enumerate(source_files(Path(sysconfig.get_path("stdlib")))):
        content = path.read_bytes()[:left]
        parts[number % HELD_OUT == HELD_OUT - 1].append(content)
        left -= len(content)
        if left == 0:
            break
    train, held_out = (Windows(b"".join(part), config.context) for part in parts)
    if not held_out:
        raise ConfigError(
            f"text_bytes: {config.text_bytes} is too small to hold out a window of {config.context} bytes"
        )
    return train, held_out


def _digits() -> tuple[TensorDataset, TensorDataset]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("task: digits needs scikit-learn: pip install 'ringreduce[train]'") from error
    images, classes = load_digits(return_X_y=True)
    x = torch.from_numpy(images.reshape(-1, 1, 8, 8) / 16).float()  # grey levels are 0 to 16
    y = torch.from_numpy(classes).long()
    # One digit in five is held out: there are few, and digits of the same writer follow each other.
    held_out = torch.arange(len(y)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


class ShardedSampler(Sampler[list[int]]):
    """An endless sampler of a rank's parts of the global batches.

    The seed and the number of the epoch determine a permutation of all samples, which every rank computes for itself.
    The permutation is cut into global batches, each batch into parts in rank order, and each part into
    micro-batches. The contents of a global batch therefore do not depend on the number of ranks. Samples that do not
    fill a global batch are left out of the epoch (other samples in each epoch). With ``pad``, the first samples of the
    epoch fill the last batch instead. These are the two rules of torch's DistributedSampler, applied to the batch
    instead of the number of ranks.

    As a ``batch_sampler`` of torch's DataLoader, it yields the indices of one micro-batch at a time.

    Args:
        samples: The number of samples.
        batch: The number of samples in a global batch.
        rank: The rank.
        size: The number of ranks.
        micro_batches: The number of micro-batches that each rank's part is cut into.
        seed: The seed of the permutations.
        shuffle: Whether to permute the samples.
        pad: Whether to fill the last batch of an epoch instead of dropping its samples.
        first_batch: The number of global batches to skip.
        shares: The samples of each rank in a global batch, given its number. They add up to the batch. See
            :class:`ringreduce.balance.Balance`. None divides all batches equally.

    Raises:
        ConfigError: The batch cannot be divided among the ranks and micro-batches, or there are too few samples.
    """

    def __init__(
        self, samples: int, batch: int, rank: int = 0, size: int = 1, *, micro_batches: int = 1, seed: int = 0,
        shuffle: bool = True, pad: bool = False, first_batch: int = 0,
        shares: Callable[[int], Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        if shares is None and batch % (size * micro_batches):
            raise ConfigError(
                f"batch: {batch} is not a multiple of {size} ranks x {micro_batches} micro-batches"
            )
        if samples < (1 if pad else batch):
            raise ConfigError(f"batch: {batch} is more than the {samples} samples that there are")
        self.samples, self.batch, self.rank, self.size = samples, batch, rank, size
        self.micro_batches, self.seed, self.shuffle = micro_batches, seed, shuffle
        self.first_batch, self.shares = first_batch, shares
        self.batches_per_epoch = -(-samples // batch) if pad else samples // batch

    def order(self, epoch: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Returns the samples of an epoch, int64 [global batches, batch]."""
        order = np.arange(self.samples)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        # resize repeats the first samples, or drops the last ones.
        return np.resize(order, (self.batches_per_epoch, self.batch))

    def __iter__(self) -> Iterator[list[int]]:
        number = self.first_batch
        while True:
            epoch, place = divmod(number, self.batches_per_epoch)
            for batch in self.order(epoch)[place:]:
                mine = np.split(batch, self._ends(number))[self.rank]
                yield from (part.tolist() for part in np.array_split(mine, self.micro_batches))
                number += 1

    def _ends(self, number: int) -> Any:
        """Returns where the ranks' parts of a global batch end, without the last one."""
        if self.shares is None:
            return self.batch // self.size * np.arange(1, self.size)
        shares = self.shares(number)
        if len(shares) != self.size or sum(shares) != self.batch:
            raise ValueError(
                f"shares {tuple(shares)} do not divide {self.batch} samples among {self.size} ranks"
            )
        for rank, share in enumerate(shares):
            if share < self.micro_batches:
                raise ValueError(
                    f"shares: rank {rank} has {share} samples for {self.micro_batches} micro-batches"
                )
        return np.cumsum(shares)[:-1]
