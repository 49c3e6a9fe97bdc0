"""Gradients as signs, decided by majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ringreduce.training.compression.group_copy import Tensor, padded_rows
from ringreduce.training.compression.method import Compression, Gradients, Memory

__all__ = ["SignMajority"]


@dataclass(eq=False, kw_only=True)
class SignMajority(Compression):
    """Sends one bit per value: every rank votes with the signs of its gradient, and all follow the majority.

    docs/training.md explains which rank counts the votes, how they are weighted, and how long the step is. Zero counts
    as positive.

    Without error feedback this is signSGD with majority vote (Bernstein et al., "signSGD with Majority Vote is
    Communication Efficient and Fault Tolerant", 2019). The length of the step is the mean of the ranks' lengths.

    With error feedback, the error of a rank's signs is added to its next gradient (Karimireddy et al., "Error Feedback
    Fixes SignSGD", 2019), and the error of the majority's signs to the next count (Zheng et al.,
    "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", 2019).

    Args:
        error_feedback: whether to keep errors for later steps.
        block: the number of values that share a magnitude, a multiple of 8.
        start_iter: the number of uncompressed steps at the start. Tang et al., "1-bit Adam", 2021, use 15 to 20 per
            cent of all steps, because their optimizer needs the moments of true gradients.
    """

    error_feedback: bool = True
    block: int = 1024
    start_iter: int = 0

    def __post_init__(self, group: Any) -> None:
        self._require("block", self.block > 0 and self.block % 8 == 0, "be a positive multiple of 8")
        super().__post_init__(group)
        self._errors = self._memory["errors"] = Memory()  # of this rank's votes
        self._left = self._memory["left"] = {}  # errors of this rank's counts, by a bucket's parameters

    def _average(self, gradients: Gradients) -> None:
        flat, group, key = gradients.flat, self._group, gradients.parameters
        if self.error_feedback:
            errors = self._errors_of(gradients)
            flat.add_(errors)
        blocks = padded_rows(flat, group.size, self.block).view(group.size, -1, self.block)
        numbers = torch.arange(group.size * blocks.shape[1], device=flat.device)
        starts = self.block * numbers.view(group.size, -1, 1)
        counts = (len(flat) - starts).clamp(0, self.block)  # values before the end, [ranks, blocks, 1]
        own = _signed_means(blocks, counts)
        votes = self._decode(group.all_to_all(self._encode(own)))
        if self.error_feedback:
            beyond = torch.arange(self.block, device=flat.device) >= counts[group.rank]
            weights = votes.mean(0).masked_fill_(beyond, 0)
            if key in self._left:
                weights += self._left[key].to(flat.device)  # what was loaded may be elsewhere
            outcome = _signed_means(weights, counts[group.rank])
        else:
            outcome = _majority(votes, gradients.step)
        outcomes = self._decode(group.all_gather(self._encode(outcome[None])[0]))
        if self.error_feedback and outcomes[..., 0].isfinite().all():
            torch.sub(flat, own.view(-1)[: len(flat)], out=errors)
            self._left[key] = (weights - outcome).masked_fill_(beyond, 0)
        flat.copy_(outcomes.view(-1)[: len(flat)])

    def _errors_of(self, gradients: Gradients) -> Tensor:
        """Returns this rank's errors in a bucket.

        Parameters may come from earlier buckets. The errors of this rank's counts there become errors of this rank,
        times the number of ranks, because gradients are averaged over the ranks.
        """
        parameters = set(gradients.parameters)
        for key in [*self._left]:
            if key != gradients.parameters and not parameters.isdisjoint(key):
                left = self._left.pop(key).view(-1)
                lengths = [len(self._errors[number]) for number in key]
                old = self._errors.flat(key, lengths, gradients.flat.device)
                counted = old[self._group.rank * len(left) :][: len(left)]
                counted += self._group.size * left[: len(counted)]
        return self._errors.flat(gradients.parameters, gradients.lengths, gradients.flat.device)

    def _encode(self, blocks: Tensor) -> Tensor:
        """Encodes signed means [rows, blocks, block] as bytes [rows, ...]: the bits of the signs, then the lengths."""
        return torch.cat([_packed((blocks >= 0).flatten(1)), blocks[..., 0].abs().view(torch.uint8)], 1)

    def _decode(self, rows: Tensor) -> Tensor:
        """The inverse of _encode."""
        blocks = rows.shape[1] // (self.block // 8 + 4)
        bits, lengths = rows.split([blocks * self.block // 8, blocks * 4], 1)
        signs = _unpacked(bits)
        # A copy, since the lengths may begin at any byte of rows.
        lengths = lengths.clone(memory_format=torch.contiguous_format).view(torch.float32)
        return _signed(signs.view(len(rows), blocks, self.block), lengths[..., None])


# NumPy's are many times as fast on a CPU.


def _packed(signs: Tensor) -> Tensor:
    """Returns signs [rows, 8 n] as bits in bytes [rows, n]."""
    if signs.device.type == "cpu":
        return torch.from_numpy(np.packbits(signs.numpy(), axis=1))
    return (signs.unflatten(1, (-1, 8)) * _weights(signs.device)).sum(-1, dtype=torch.uint8)


def _unpacked(bits: Tensor) -> Tensor:
    """The inverse of _packed."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(bits.numpy(), axis=1)).view(torch.bool)
    return (bits[..., None] & _weights(bits.device)).flatten(1) != 0


def _weights(device: Any) -> Tensor:
    return 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=device)


def _signed(signs: Tensor, lengths: Tensor) -> Tensor:
    """Returns lengths [..., blocks, 1] with signs [..., blocks, block]. True means positive."""
    return signs.float().mul_(2).sub_(1).mul_(lengths)  # ten times as fast as torch.where()


def _signed_means(blocks: Tensor, counts: Tensor) -> Tensor:
    """Returns the mean magnitude of each block [..., block], with the signs of its values. counts: [..., 1]."""
    return _signed(blocks >= 0, blocks.abs().sum(-1, keepdim=True) / counts.clamp(min=1))


def _majority(votes: Tensor, step: int) -> Tensor:
    """Returns the majority's signs of votes [ranks, blocks, block], with the mean of the ranks' lengths."""
    positive = votes >= 0
    twice = 2 * positive.sum(0)
    signs = torch.where(twice == len(votes), positive[step % len(votes)], twice > len(votes))
    return _signed(signs, votes[..., :1].abs().mean(0))
