"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen

__all__ = ["SyncBatchNorm", "convert_sync_batchnorm"]


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation (Ioffe and Szegedy, 2015) with the mean and variance of all ranks' batches together.

    Takes inputs [batch, features, ...] with any number of further axes. The ranks' batches may differ in size. In
    training mode every rank must call it. In evaluation mode it normalises with the running statistics (or, without
    them, with those of this rank's batch), and communicates nothing.

    A forward pass gathers 2 * features + 1 numbers from every rank, and a backward pass sums 2 * features. The
    gradients of weight and bias are this rank's part, to be summed or averaged over the ranks like all others.

    The arguments are those of torch.nn.BatchNorm2d, and ``comm``.

    Args:
        comm: the group. None takes the communicator of all ranks at the time of each call.

    Raises:
        ValueError: the input does not have num_features features, or in training mode all ranks together have fewer
            than two values per feature.
    """

    running_mean: Any  # a Tensor, or None without running statistics
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        comm: Communicator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.comm = comm

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, comm: Communicator | None = None) -> nn.Module:
        """Calls :func:`ringreduce.convert_sync_batchnorm`. torch's SyncBatchNorm has a method of this name, too."""
        return convert_sync_batchnorm(module, comm)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"input must be [batch, {self.num_features}, ...], not {list(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        """Normalises x [batch, features, ...]. The result has the shape and dtype of x."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        comm = chosen(self.comm)
        mean, var, count = batch_statistics(x, comm)
        if self.track_running_stats:
            self._update_running(mean, var * (count / (count - 1)))
        normalize: Any = _Normalize.apply
        result: Tensor = normalize(x, self.weight, self.bias, mean, var, count, self.eps, comm)
        return result

    def _update_running(self, mean: Tensor, var: Tensor) -> None:
        """Moves the running statistics towards the batch's, by momentum. None averages over all batches."""
        self.num_batches_tracked.add_(1)
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(var.to(self.running_var), share)

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """Returns a copy with the same group, which itself cannot be copied."""
        memo[id(self.comm)] = self.comm
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


@torch.no_grad()
def batch_statistics(x: Tensor, comm: Communicator) -> tuple[Tensor, Tensor, int]:
    """Returns mean [features], biased variance [features] and the number of values per feature of all ranks' x.

    Combines the ranks' means and squared deviations with the formula of Chan, Golub and LeVeque, "Updating formulae and
    a pairwise algorithm for computing sample variances" (1979), which never subtracts two large sums.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    count, features = x.numel() // x.shape[1], x.shape[1]
    values = x.to(_wide(x.dtype))
    own = values.new_zeros(1 + 2 * features)
    if count > 0:
        var, mean = torch.var_mean(values, axes, correction=0)
        own = torch.cat([own.new_tensor([count]), mean, var])
    everybodys: Any = comm.all_gather(own).view(comm.size, -1)
    counts, means, variances = everybodys.double().split([1, features, features], dim=1)
    total = int(counts.sum())
    if total < 2:
        raise ValueError(f"all ranks together have {total} values per feature; a variance needs at least 2")
    weights = counts / total
    mean = (weights * means).sum(0)
    var = (weights * (variances + (means - mean) ** 2)).sum(0)
    return mean.to(values.dtype), var.to(values.dtype), total


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on every rank's x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, count: int,
        eps: float, comm: Communicator,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(var + eps))
        ctx.count, ctx.comm = count, comm
        scale, shift = (None if part is None else part.to(mean.dtype) for part in (weight, bias))
        return nn.functional.batch_norm(x, mean, var, scale, shift, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)  # broadcasts a value per feature to x
        gradient = upstream.to(mean.dtype)
        normalized = (x.to(mean.dtype) - mean.view(shape)) * inverse_std.view(shape)
        sums = torch.stack([gradient.sum(axes), (gradient * normalized).sum(axes)])
        of_bias, of_weight = sums.clone()
        of_x = None
        if ctx.needs_input_grad[0]:
            # x affects every rank's results, through the mean and the variance.
            by_mean, by_std = ctx.comm.all_reduce(sums) / ctx.count
            of_x = gradient - by_mean.view(shape) - normalized * by_std.view(shape)
            of_x *= (inverse_std if weight is None else inverse_std * weight).view(shape)
            of_x = of_x.to(x.dtype)
        if weight is None:
            return (of_x, *[None] * 7)
        return of_x, of_weight.to(weight.dtype), of_bias.to(weight.dtype), *[None] * 5


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which to add up values of this dtype."""
    return dtype if dtype == torch.float64 else torch.float32


def convert_sync_batchnorm(module: nn.Module, comm: Communicator | None = None) -> nn.Module:
    """Replaces every batch normalisation in a model with a :class:`SyncBatchNorm`. Every rank must call it.

    The layers share a new group with the ranks of comm. Their statistics therefore do not wait behind buckets of
    gradients, and the order of the two need not be the same on all ranks.

    Args:
        module: the model, which is changed in place. Parameters and buffers stay the same objects.
        comm: the group. None takes the communicator of all ranks.

    Returns:
        module, or its replacement if module itself is a batch normalisation.

    Raises:
        ValueError: a lazy layer does not know its number of features yet.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _LazyNormBase):
            raise ValueError(f"layer {name!r} is still lazy: run a batch through the model first")
    own = chosen(comm).split(0)
    return _converted(module, own, {})


def _converted(module: nn.Module, comm: Communicator | None, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Converts module and its children. done has the layers converted so far: a layer may be in several places."""
    if module not in done:
        done[module] = _synchronized(module, comm) if isinstance(module, _BatchNorm) else module
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, _converted(child, comm, done))
    return done[module]


def _synchronized(layer: _BatchNorm, comm: Communicator | None) -> SyncBatchNorm:
    twin = SyncBatchNorm(
        layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats, comm
    )
    # The same parameter objects, because an optimizer may hold them already.
    twin._parameters, twin._buffers = dict(layer._parameters), dict(layer._buffers)
    return twin.train(layer.training)
