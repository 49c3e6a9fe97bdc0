"""Gradients of matrices as products of two narrow matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.compression.base import Compression
from ringreduce.compression.bucket import Bucket
from ringreduce.compression.memory import Memory

__all__ = ["PowerSGD"]

Tensor = Any  # torch.Tensor


class PowerSGD(Compression):
    """Low-rank gradients by one step of power iteration a training step (Vogels et al., "PowerSGD", 2019).

    Of a gradient M [n, m], which is the first axis by all others, ranks add up P = M Q, orthogonalise its columns, add
    up Q = M^T P, and step along P Q^T. Q is where the next step begins ("warm start"), and what a rank's M has beyond
    its P Q^T is added to its next gradient ("error feedback"). It takes two all_reduces per bucket: of all P's with
    what is not compressed, and of all Q's.

    Args:
        matrix_rank: r, at most.
        start_iter: how many steps are not compressed at first.
        min_compression_rate: matrices are compressed where that makes them smaller by more than this factor. Vectors
            never are.
        error_feedback, warm_start: whether to have the two.
        seed: of the first Q's, which all ranks must draw alike.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        matrix_rank: int = 4,
        start_iter: int = 0,
        min_compression_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if matrix_rank < 1:
            raise ValueError(f"matrix_rank must be at least 1, not {matrix_rank}")
        if start_iter < 0:
            raise ValueError(f"start_iter must not be negative, not {start_iter}")
        if not min_compression_rate >= 1:
            raise ValueError(f"min_compression_rate must be at least 1, not {min_compression_rate}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        super().__init__(group, timeout=timeout)
        self.matrix_rank, self.start_iter = matrix_rank, start_iter
        self.min_compression_rate, self.seed = min_compression_rate, seed
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self._errors = Memory()
        self._qs: dict[int, Tensor] = {}  # by parameter

    def _average(self, bucket: Bucket) -> None:
        if bucket.step < self.start_iter:
            self._group.mean(bucket.flat)
            return
        if self.error_feedback:
            bucket.flat.add_(self._errors.flat(bucket))
        numbers, vectors = self._sorted(bucket)
        matrices = _as_matrices(bucket, bucket.flat, numbers)
        qs = [self._q(bucket, number, matrix) for number, matrix in zip(numbers, matrices, strict=True)]
        ps = [matrix @ q for matrix, q in zip(matrices, qs, strict=True)]
        if not self._mean([*ps, *vectors]):
            bucket.flat.fill_(math.nan)
            return
        ps = [torch.linalg.qr(p).Q for p in ps]
        qs = [matrix.T @ p for matrix, p in zip(matrices, ps, strict=True)]
        if self.error_feedback:
            errors = _as_matrices(bucket, self._errors.flat(bucket), numbers)
            for error, matrix, p, q in zip(errors, matrices, ps, qs, strict=True):
                torch.addmm(matrix, p, q.T, alpha=-1, out=error)
        self._mean(qs)
        for number, matrix, p, q in zip(numbers, matrices, ps, qs, strict=True):
            torch.mm(p, q.T, out=matrix)
            if self.warm_start:
                self._qs[bucket.parameters[number]] = q

    def _sorted(self, bucket: Bucket) -> tuple[list[int], list[Tensor]]:
        """Which of the bucket's parameters are compressed, and the gradients of the others."""
        numbers, others = [], []
        for number, gradient in enumerate(bucket.views(bucket.flat)):
            if gradient.dim() > 1 and len(gradient) and self._worth_it(len(gradient), gradient.numel()):
                numbers.append(number)
            else:
                others.append(gradient)
        return numbers, others

    def _worth_it(self, rows: int, values: int) -> bool:
        columns = values // rows
        rank = min(self.matrix_rank, rows, columns)
        return values > (rows + columns) * rank * self.min_compression_rate

    def _q(self, bucket: Bucket, number: int, matrix: Tensor) -> Tensor:
        """[m, r] from the step before, or of the normal distribution."""
        parameter = bucket.parameters[number]
        if parameter in self._qs:
            return self._qs[parameter]
        draw = np.random.default_rng([self.seed, parameter, 0 if self.warm_start else bucket.step])
        shape = (matrix.shape[1], min(self.matrix_rank, *matrix.shape))
        return torch.from_numpy(draw.standard_normal(shape, np.float32))

    def _mean(self, tensors: list[Tensor]) -> bool:
        """Replaces tensors by their averages over the ranks, in one all_reduce. Whether all are finite."""
        packed = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)
        if len(packed):
            self._group.mean(packed)
        for tensor, mean in zip(
            tensors, torch.split(packed, [tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(mean.view_as(tensor))
        return bool(packed.isfinite().all())

    def _memory(self) -> dict[str, Any]:
        qs = {parameter: q.clone() for parameter, q in self._qs.items()}
        return {"errors": self._errors.state_dict(), "qs": qs}

    def _load_memory(self, saved: dict[str, Any]) -> None:
        self._errors.load_state_dict(saved["errors"])
        self._qs = {parameter: q.clone() for parameter, q in saved["qs"].items()}


def _as_matrices(bucket: Bucket, flat: Tensor, numbers: list[int]) -> list[Tensor]:
    views = bucket.views(flat)
    return [views[number].flatten(1) for number in numbers]
