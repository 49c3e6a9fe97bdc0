"""Gradients of matrices, as products of two narrow matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch

from ringreduce.training.compression.group_copy import Tensor
from ringreduce.training.compression.method import Compression, Gradients, Memory

__all__ = ["PowerSGD"]


@dataclass(eq=False, kw_only=True)
class PowerSGD(Compression):
    """Compresses gradients to low rank, with one power iteration per training step (Vogels et al., "PowerSGD", 2019).

    A gradient becomes a matrix M [n, m]: its first axis by all others. The ranks add up P = M Q, orthogonalise its
    columns, add up Q = M^T P, and step along P Q^T. The next step starts from this Q ("warm start"). The difference
    between a rank's M and its P Q^T is added to its next gradient ("error feedback"). A bucket takes two all-reduces:
    one of all P and the uncompressed gradients, and one of all Q.

    Args:
        matrix_rank: the largest rank r of P and Q.
        start_iter: the number of uncompressed steps at the start.
        min_compression_rate: a matrix is compressed only if this makes it smaller by more than this factor. Vectors are
            never compressed.
        error_feedback: whether to add the compression error to the next gradient.
        warm_start: whether to start from the Q of the previous step.
        seed: the seed of the first Q, the same on all ranks.
    """

    matrix_rank: int = 4
    start_iter: int = 0
    min_compression_rate: float = 2.0
    error_feedback: bool = True
    warm_start: bool = True
    seed: int = 0

    def __post_init__(self, group: Any) -> None:
        self._require("matrix_rank", self.matrix_rank >= 1, "be at least 1")
        self._require("min_compression_rate", self.min_compression_rate >= 1, "be at least 1")
        self._require("seed", self.seed >= 0, "not be negative")
        super().__post_init__(group)
        self._errors = self._memory["errors"] = Memory()
        self._qs = self._memory["qs"] = {}  # by parameter

    def _average(self, gradients: Gradients) -> None:
        flat = gradients.flat
        views = gradients.views(flat)
        chosen = [self._worth_it(shape) for shape in gradients.shapes]
        numbers = [*compress(gradients.parameters, chosen)]
        matrices = [view.flatten(1) for view in compress(views, chosen)]
        vectors = [view for view, is_matrix in zip(views, chosen, strict=True) if not is_matrix]
        if self.error_feedback:
            feedback = self._errors.flat(gradients.parameters, gradients.lengths, flat.device)
            flat.add_(feedback)
            errors = [view.flatten(1) for view in compress(gradients.views(feedback), chosen)]
        qs = [self._q(*each, gradients.step) for each in zip(numbers, matrices, strict=True)]
        ps = [matrix @ q for matrix, q in zip(matrices, qs, strict=True)]
        if not self._mean([*ps, *vectors]):
            flat.fill_(math.nan)
            return
        ps = [torch.linalg.qr(p).Q for p in ps]
        qs = [matrix.T @ p for matrix, p in zip(matrices, ps, strict=True)]
        if self.error_feedback:
            for error, matrix, p, q in zip(errors, matrices, ps, qs, strict=True):
                torch.addmm(matrix, p, q.T, alpha=-1, out=error)
        self._mean(qs)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            torch.mm(p, q.T, out=matrix)
        if self.warm_start:
            self._qs.update(zip(numbers, qs, strict=True))

    def _worth_it(self, shape: Any) -> bool:
        """Returns whether to compress a parameter."""
        if len(shape) < 2 or not shape.numel():
            return False
        rows, columns = shape[0], shape.numel() // shape[0]
        rank = min(self.matrix_rank, rows, columns)
        return bool(shape.numel() > (rows + columns) * rank * self.min_compression_rate)

    def _q(self, parameter: int, matrix: Tensor, step: int) -> Tensor:
        """Returns Q [m, r] of the previous step, or from the normal distribution."""
        if parameter in self._qs:
            return self._qs[parameter].to(matrix.device)  # what was loaded may be elsewhere
        draw = np.random.default_rng([self.seed, parameter, 0 if self.warm_start else step])
        shape = (matrix.shape[1], min(self.matrix_rank, *matrix.shape))
        return torch.from_numpy(draw.standard_normal(shape, np.float32)).to(matrix.device)

    def _mean(self, tensors: list[Tensor]) -> bool:
        """Replaces tensors with their averages over the ranks, in one all-reduce. Returns whether all are finite."""
        if not tensors:
            return True
        packed = torch.cat([*(tensor.reshape(-1) for tensor in tensors)])
        if len(packed):
            self._group.mean(packed)
        parts = torch.split(packed, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return bool(packed.isfinite().all())
