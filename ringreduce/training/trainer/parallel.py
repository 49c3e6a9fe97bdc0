"""Makes what the settings choose: the exchange of gradients, the optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import ringreduce
from ringreduce.requirement import unmet
from ringreduce.training import compression, low_communication
from ringreduce.training.trainer.config import Config, ConfigError

__all__ = [
    "learning_rate_factor",
    "make_compression",
    "make_optimizer",
    "make_outer",
    "optimizer_class",
    "with_exchange",
]


LARGE_BATCH = {"lars": "LARS", "lamb": "Lamb"}
OLDEST = "4.1"  # the version of pytorch_optimizer


def with_exchange(config: Config, module: nn.Module, comm: ringreduce.Communicator) -> Any:
    """Wraps the module in DataParallel, or returns it unchanged if nothing or the optimizer exchanges the gradients."""
    if config.sharded_optimizer == 2 or config.low_communication != "none" or config.parameter_server:
        return module
    return ringreduce.DataParallel(
        module,
        comm,
        bucket_mb=config.bucket_mb,
        first_bucket_mb=config.first_bucket_mb,
        static_graph=config.static_graph,
        wire=wire_of(config),
        logical_shards=config.logical_shards or None,
    )


def wire_of(config: Config) -> Any:
    return None if config.wire == "float32" else config.wire


def make_outer(
    config: Config, model: nn.Module, comm: ringreduce.Communicator
) -> low_communication.Outer | None:
    """Returns what synchronises the ranks' models now and then, or None if the ranks exchange gradients."""
    if config.low_communication == "none":
        return None
    if config.low_communication == "local_sgd":
        return low_communication.LocalSGD(
            model.parameters(), comm, every=config.local_steps,
            start=config.synchronous_steps, adaptive=config.adaptive_steps,
        )  # fmt: skip
    outer: dict[str, Any] = {"lr": config.outer_learning_rate, "momentum": config.outer_momentum}
    outer |= {"every": config.local_steps, "wire": wire_of(config)}
    if config.low_communication == "diloco":
        return low_communication.DiLoCo(model.parameters(), comm, adaptive=config.adaptive_steps, **outer)
    mixing = config.mixing if config.overlap else None
    return low_communication.StreamingDiLoCo(
        model.parameters(), comm, fragments=config.fragments, overlap=config.overlap, mixing=mixing, **outer
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
    kind = optimizer_class(config)
    settings: dict[str, Any] = {"lr": peak_learning_rate(config)}
    if config.optimizer in ("sgd", "lars"):
        settings["momentum"] = config.momentum
    if config.optimizer == "lars":
        settings["trust_coefficient"] = config.trust_coefficient
    if config.parameter_server:
        if comm.size < 2:
            raise ConfigError("parameter_server: it needs 2 or more ranks")
        staleness = None if config.staleness < 0 else config.staleness
        return ringreduce.ParameterServer(comm, model, kind, groups, staleness=staleness, **settings)
    if config.sharded_optimizer:
        settings |= {"stage": config.sharded_optimizer, "bucket_mb": config.bucket_mb}
        settings |= {"copies": config.elastic_copies if config.elastic else 0}
        return ringreduce.ShardedOptimizer(groups, kind, comm, **settings)
    return kind(groups, **settings)


def optimizer_class(config: Config) -> Callable[..., Any]:
    """Returns the class of the optimizer. LARS and LAMB give each parameter a learning rate in proportion to its norm.

    See You et al., "Large Batch Training of Convolutional Networks" (2017) and "Large Batch Optimization for Deep
    Learning: Training BERT in 76 minutes" (2020).

    Raises:
        ConfigError: The package that has LARS and LAMB is not installed.
    """
    if config.optimizer not in LARGE_BATCH:
        return torch.optim.SGD if config.optimizer == "sgd" else torch.optim.AdamW
    try:
        import pytorch_optimizer
    except ImportError as error:
        told = unmet(config.optimizer, "pytorch_optimizer", OLDEST, error, install="ringreduce[train]")
        raise ConfigError(f"optimizer: {told}") from error
    found: Callable[..., Any] = getattr(pytorch_optimizer, LARGE_BATCH[config.optimizer])
    return found


def batch_factor(config: Config) -> float:
    """Returns the factor of the learning rate because of the batch.

    It is the quotient of the batch and the base batch (Goyal et al., "Accurate, large minibatch SGD", 2017), or its
    root (You et al., 2020).
    """
    quotient = config.batch / config.base_batch if config.base_batch else 1.0
    return math.sqrt(quotient) if config.batch_scaling == "sqrt" else quotient


def peak_learning_rate(config: Config) -> float:
    return config.learning_rate * batch_factor(config)


def learning_rate_factor(config: Config, step: int) -> float:
    """Returns the learning rate of a step (counted from 0), as a fraction of the peak.

    During the warm-up it rises from the learning rate of the base batch (Goyal et al.), or from nearly zero if the
    batch is not scaled up. After that it is constant, or falls to a tenth along half a cosine (Loshchilov and Hutter,
    "SGDR", 2017).
    """
    if step < config.warmup:
        factor = batch_factor(config)
        start = 1 / factor if factor > 1 else 0.0
        return start + (1 - start) * (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
