"""How the ranks come to the same gradients: the settings' choice among the library's parts."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

import ringreduce
from ringreduce import compression
from ringreduce.blobs import gather_bytes
from ringreduce.data_parallel.timings import StepTimings
from ringreduce.train.config import Config
from ringreduce.train.optimization import make_optimizer

__all__ = ["Parallel"]

STATES: dict[str, Callable[[Config, ringreduce.Communicator], compression.Compression]] = {
    "fp16": lambda config, comm: compression.HalfPrecision("fp16", comm),
    "bf16": lambda config, comm: compression.HalfPrecision("bf16", comm),
    "int8": lambda config, comm: compression.Int8Blocks(comm),
    "sign": lambda config, comm: compression.SignMajority(comm),
    "topk": lambda config, comm: compression.TopK(comm, fraction=config.top_fraction),
    "powersgd": lambda config, comm: compression.PowerSGD(comm, matrix_rank=config.matrix_rank),
}


class Parallel:
    """A model and its optimizer on one rank, and the exchange between the ranks.

    With ``sharded_optimizer`` 2 the optimizer has the gradients exchanged, else DataParallel.

    Attributes:
        model: to be called in training; ``module`` is the model without what is wrapped around it.
    """

    def __init__(self, config: Config, module: nn.Module, comm: ringreduce.Communicator) -> None:
        if config.task == "digits" and config.sync_batch_norm:
            module = ringreduce.convert_sync_batch_norm(module, comm)
        self.comm, self.module = comm, module
        self._stage = config.sharded_optimizer
        self.model = _wrapped(config, module, comm)
        self.optimizer = make_optimizer(config, module, comm)
        self.compression: compression.Compression | None = None
        if config.compression != "none":
            self.compression = STATES[config.compression](config, comm)
            self.model.register_comm_hook(self.compression, compression.hook)

    def exchange(self, wanted: bool) -> AbstractContextManager[None]:
        """Around a forward and a backward pass: whether gradients are exchanged in it, or only added up here."""
        if wanted:
            return nullcontext()
        exchanging: Any = self.optimizer if self._stage == 2 else self.model
        found: AbstractContextManager[None] = exchanging.no_sync()
        return found

    def for_evaluation(self) -> nn.Module:
        """The module in evaluation mode; all ranks' have rank 0's running statistics."""
        if self._stage != 2:
            self.model.sync_buffers()
        return self.module.eval()

    def clip(self, limit: float) -> float:
        """Scales the averaged gradient to that norm, if it is longer; returns the norm before."""
        if self._stage:
            return float(self.optimizer.clip_grad_norm_(limit))
        return float(nn.utils.clip_grad_norm_(self.module.parameters(), limit))

    @property
    def timings(self) -> StepTimings:
        """Of the last step: the gradients' exchange, and that of sharded parameters."""
        of_model = StepTimings() if self._stage == 2 else self.model.timings
        of_optimizer = self.optimizer.timings if self._stage else StepTimings()
        return StepTimings(of_model.buckets + of_optimizer.buckets, of_model.waits + of_optimizer.waits)

    # --- checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one process without sharding would have them. Every rank must call it."""
        state = {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.compression is not None:
            state["compression"] = self._of_all_ranks(self.compression.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what any number of ranks has saved."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        saved = state.get("compression", [])
        own = saved[self.comm.rank] if len(saved) == self.comm.size else None
        # What other ranks or another method have not sent yet is lost: that is one step's error, and no more.
        if self.compression is not None and own and own["method"] == type(self.compression).__name__:
            self.compression.load_state_dict(own)

    def _of_all_ranks(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Each rank's state, on all of them."""
        file = io.BytesIO()
        torch.save(own, file)
        blobs = gather_bytes(self.comm, file.getvalue())
        return [torch.load(io.BytesIO(blob), weights_only=True) for blob in blobs]


def _wrapped(config: Config, module: nn.Module, comm: ringreduce.Communicator) -> Any:
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
