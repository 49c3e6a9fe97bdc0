"""Gradients as signs, of which the majority decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.memory import Memory
from ringreduce.compression.two_shot import as_floats, padded_rows

__all__ = ["SignMajority"]

Tensor = Any  # torch.Tensor


class SignMajority(Compression):
    """One bit a value: every rank votes with the sign of its gradient, and all step the way of the majority.

    Rank r counts the votes on the r-th part of a bucket and sends the result to all. Signs are packed 8 to a byte; the
    step's length is the mean magnitude of a block of neighbouring values, a float32.

    Without error feedback it is signSGD with majority vote (Bernstein et al., "signSGD with Majority Vote is
    Communication Efficient and Fault Tolerant", 2019): all votes count the same, and where as many are for as against,
    one rank's decides, another's in every step. The length is the mean of the ranks' lengths.

    With error feedback a vote weighs as much as the rank's mean magnitude there. What a rank's signs did not say is
    added to its next gradient (Karimireddy et al., "Error Feedback Fixes SignSGD", 2019), and what the majority's signs
    did not say to the next count (Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with
    Error-Feedback", 2019), so that over time all of the gradient arrives. Zero counts as positive.

    Args:
        error_feedback: whether what was left out is kept for later.
        block: how many values share a magnitude, a multiple of 8.
        start_iter: how many steps are not compressed at first. (Tang et al., "1-bit Adam", 2021, whose optimizer needs
            the moments of true gradients, take 15 to 20 per cent of all.)

    Raises:
        ValueError: block is not a positive multiple of 8, or start_iter is negative.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        error_feedback: bool = True,
        block: int = 1024,
        start_iter: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if block < 1 or block % 8:
            raise ValueError(f"block must be a positive multiple of 8, not {block}")
        if start_iter < 0:
            raise ValueError(f"start_iter must not be negative, not {start_iter}")
        super().__init__(group, timeout=timeout)
        self.error_feedback, self.block, self.start_iter = error_feedback, block, start_iter
        self._errors = Memory()  # of this rank's votes
        self._left: dict[tuple[int, ...], Tensor] = {}  # of the counts that this rank makes, by bucket

    def _average(self, bucket: Bucket) -> None:
        flat, size = bucket.flat, self._group.size
        if bucket.step < self.start_iter:
            self._group.mean(flat)
            return
        errors = self._with_errors(bucket) if self.error_feedback else None
        grid = padded_rows(flat, size, self.block).view(-1, self.block)
        counts = self._counts(flat.numel(), len(grid))
        signs, lengths = grid >= 0, grid.abs().sum(1, keepdim=True) / counts.clamp(min=1)
        votes = self._group.all_to_all(self._encode(signs, lengths, size))
        counted, left = self._count(bucket, *self._decode(votes), counts.view(size, -1, 1)[self._group.rank])
        signs_of_all, lengths_of_all = self._decode(self._group.all_gather(counted[0]))
        if errors is not None and bool(lengths_of_all.isfinite().all()):
            torch.sub(flat, flattened(signs, lengths, flat), out=errors)
            self._left[bucket.parameters] = left
        flat.copy_(flattened(signs_of_all, lengths_of_all, flat))

    def _count(self, bucket: Bucket, signs: Tensor, lengths: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The encoded outcome of the votes [ranks, blocks, block], and what it leaves out [blocks, block]."""
        if not self.error_feedback:
            tally = torch.where(signs, 1, -1).sum(0)
            for_it = torch.where(tally == 0, signs[bucket.step % self._group.size], tally > 0)
            return self._encode(for_it, lengths.mean(0), 1), torch.empty(0)
        weight = torch.where(signs, lengths, -lengths).mean(0)
        weight[torch.arange(self.block) >= counts] = 0  # beyond the bucket's end
        if bucket.parameters in self._left:
            weight += self._left[bucket.parameters]
        length = weight.abs().sum(1, keepdim=True) / counts.clamp(min=1)
        for_it = weight >= 0
        left = weight - torch.where(for_it, length, -length)
        left[torch.arange(self.block) >= counts] = 0
        return self._encode(for_it, length, 1), left

    def _with_errors(self, bucket: Bucket) -> Tensor:
        """Adds this rank's errors to the gradient, and returns them.

        What was left out of counts of other buckets that had some of these parameters becomes an error of this rank's,
        times the number of ranks, of which an average is made.
        """
        moved = set(bucket.parameters)
        for key in [key for key in self._left if key != bucket.parameters and not moved.isdisjoint(key)]:
            left = self._left.pop(key).view(-1) * self._group.size
            self._errors.add(key, self._group.rank * len(left), left)
        errors = self._errors.flat(bucket)
        bucket.flat.add_(errors)
        return errors

    def _counts(self, values: int, blocks: int) -> Tensor:
        """How many values of each block are before the bucket's end, [blocks, 1]."""
        return (values - self.block * torch.arange(blocks)[:, None]).clamp(0, self.block)

    def _encode(self, signs: Tensor, lengths: Tensor, rows: int) -> Tensor:
        """Signs [..., block] and lengths [..., 1] of blocks in order, as bytes [rows, ...]."""
        bits = torch.from_numpy(np.packbits(signs.numpy().reshape(rows, -1), axis=1))
        return torch.cat([bits, lengths.reshape(rows, -1).view(torch.uint8)], 1)

    def _decode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of bytes [rows, ...] the signs [rows, blocks, block] and lengths [rows, blocks, 1]."""
        blocks = rows.shape[1] // (self.block // 8 + 4)
        bits, lengths = rows.split([blocks * self.block // 8, blocks * 4], 1)
        signs = torch.from_numpy(np.unpackbits(bits.numpy(), axis=1)).view(torch.bool)
        return signs.view(len(rows), blocks, self.block), as_floats(lengths)[..., None]

    def _memory(self) -> dict[str, Any]:
        left = {key: tensor.clone() for key, tensor in self._left.items()}
        return {"errors": self._errors.state_dict(), "left": left}

    def _load_memory(self, saved: dict[str, Any]) -> None:
        self._errors.load_state_dict(saved["errors"])
        self._left = {key: tensor.clone() for key, tensor in saved["left"].items()}


def flattened(signs: Tensor, lengths: Tensor, like: Tensor) -> Tensor:
    """Signs times lengths, as many as like has."""
    return torch.where(signs, lengths, -lengths).view(-1)[: like.numel()]
