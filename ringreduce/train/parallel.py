"""Makes what the settings choose: the exchange of gradients, the optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import ringreduce
from ringreduce import compression
from ringreduce.train.config import Config

__all__ = ["learning_rate_factor", "make_compression", "make_optimizer", "with_exchange"]


def with_exchange(config: Config, module: nn.Module, comm: ringreduce.Communicator) -> Any:
    """Wraps the module in DataParallel, or returns it unchanged if the optimizer exchanges the gradients."""
    if config.sharded_optimizer == 2:
        return module
    return ringreduce.DataParallel(
        module,
        comm,
        bucket_mb=config.bucket_mb,
        first_bucket_mb=config.first_bucket_mb,
        static_graph=config.static_graph,
        wire=None if config.wire == "float32" else config.wire,
        logical_shards=config.logical_shards or None,
    )


def make_compression(
    config: Config, model: Any, comm: ringreduce.Communicator
) -> compression.Compression | None:
    """Registers the compression that the settings choose as a hook of the model, and returns its state, or None."""
    if config.compression == "none":
        return None
    methods: dict[str, Callable[..., compression.Compression]] = {
        "fp16": partial(compression.HalfPrecision, "fp16"),
        "bf16": partial(compression.HalfPrecision, "bf16"),
        "int8": compression.Int8Blocks,
        "sign": compression.SignMajority,
        "topk": partial(compression.TopK, fraction=config.top_fraction),
        "powersgd": partial(compression.PowerSGD, matrix_rank=config.matrix_rank),
    }
    state = methods[config.compression](group=comm)
    model.register_comm_hook(state, compression.hook)
    return state


def make_optimizer(config: Config, model: nn.Module, comm: ringreduce.Communicator) -> Any:
    """Returns the optimizer. It applies weight decay only to matrices, because it harms biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    kind: Callable[..., Any] = torch.optim.AdamW
    settings: dict[str, Any] = {"lr": peak_learning_rate(config)}
    if config.optimizer == "sgd":
        kind, settings["momentum"] = torch.optim.SGD, config.momentum
    if config.sharded_optimizer:
        settings |= {"stage": config.sharded_optimizer, "bucket_mb": config.bucket_mb}
        settings |= {"copies": config.elastic_copies if config.elastic else 0}
        return ringreduce.ShardedOptimizer(groups, kind, comm, **settings)
    return kind(groups, **settings)


def peak_learning_rate(config: Config) -> float:
    """Scales the learning rate in proportion to the batch (Goyal et al., "Accurate, large minibatch SGD", 2017)."""
    return config.learning_rate * (config.batch / config.base_batch if config.base_batch else 1)


def learning_rate_factor(config: Config, step: int) -> float:
    """Returns the learning rate of a step (counted from 0), as a fraction of the peak.

    During the warm-up it rises from the learning rate of the base batch (Goyal et al.), or from nearly zero if the
    batch is not scaled up. After that it is constant, or falls to a tenth along half a cosine (Loshchilov and Hutter,
    "SGDR", 2017).
    """
    if step < config.warmup:
        scaled_up = config.base_batch and config.batch > config.base_batch
        start = config.base_batch / config.batch if scaled_up else 0.0
        return start + (1 - start) * (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
