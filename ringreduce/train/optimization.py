"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import ringreduce
from ringreduce.train.config import Config

__all__ = ["learning_rate_factor", "make_optimizer", "make_schedule", "peak_learning_rate"]


def peak_learning_rate(config: Config) -> float:
    """Twice the batch takes twice the learning rate (Goyal et al., "Accurate, large minibatch SGD", 2017)."""
    return config.learning_rate * (config.batch / config.base_batch if config.base_batch else 1)


def learning_rate_factor(config: Config, step: int) -> float:
    """The learning rate of a step (from 0), as a share of the peak.

    The warm-up rises from the base batch's learning rate, as Goyal et al. have it, or if nothing is scaled up from
    nearly zero. What follows is constant, or half a cosine down to a tenth (Loshchilov and Hutter, "SGDR", 2017).
    """
    if step < config.warmup:
        scaled_up = config.base_batch and config.batch > config.base_batch
        start = config.base_batch / config.batch if scaled_up else 0.0
        return start + (1 - start) * (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def make_schedule(config: Config, optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(learning_rate_factor, config))


def make_optimizer(config: Config, model: nn.Module, comm: ringreduce.Communicator) -> Any:
    """Weight decay is for matrices: it would only hinder biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    rate = peak_learning_rate(config)
    kind: Callable[..., Any] = torch.optim.AdamW
    settings: dict[str, Any] = {"lr": rate}
    if config.optimizer == "sgd":
        kind, settings = torch.optim.SGD, {"lr": rate, "momentum": config.momentum}
    if config.sharded_optimizer:
        stage, bucket_mb = config.sharded_optimizer, config.bucket_mb
        return ringreduce.ShardedOptimizer(groups, kind, comm, stage=stage, bucket_mb=bucket_mb, **settings)
    return kind(groups, **settings)
