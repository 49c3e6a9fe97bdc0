"""One rank of data-parallel training: a step, an evaluation, and the state from which training resumes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Subset

import ringreduce
from ringreduce.training.balance import Balance, equal_shares
from ringreduce.training.trainer.config import Config, ConfigError
from ringreduce.training.trainer.data import ShardedSampler, load_data
from ringreduce.training.trainer.models import make_model
from ringreduce.training.trainer.parallel import (
    learning_rate_factor,
    make_compression,
    make_optimizer,
    make_outer,
    with_exchange,
)

__all__ = ["StepReport", "Trainer"]

# Settings that must be the same as in the checkpoint, because they determine the shapes of the weights or the position
# in the data. The number of ranks may differ.
KEPT = (
    "task", "layers", "heads", "width", "context", "channels", "text_bytes", "batch", "seed", "optimizer",
)  # fmt: skip


@dataclass
class StepReport:
    """An optimizer step of one rank. Times are in seconds."""

    losses: list[float]  # one for each micro-batch
    norm: float  # norm of the averaged gradient, before clipping
    seconds: float
    communication: float  # how long the exchange of gradients took
    exposed: float  # how long the training thread waited for it


class Trainer:
    """The model, its data and its optimizer on one rank. All ranks of ``comm`` must call each method.

    Attributes:
        module: The model.
        model: The model wrapped in the exchange of gradients, which is called in training.
        done: The number of steps done.
        timeline: The timeline, if the settings ask for a trace, or None.

    Raises:
        ConfigError: The settings do not fit the number of ranks, or the data is not installed.
    """

    def __init__(self, config: Config, comm: ringreduce.Communicator) -> None:
        self.config, self.comm = config, comm
        self.micro_batches = config.accumulation
        if shards := config.logical_shards:
            self.micro_batches, rest = divmod(shards, comm.size)
            if rest:
                raise ConfigError(f"logical_shards: {shards} is not a multiple of the {comm.size} ranks")
        self.data, self.held_out = load_data(config)
        self.balance = self._make_balance() if config.balance else None
        self._go_to(0)
        self.module = make_model(config)
        if config.task == "digits" and config.sync_batch_norm and config.low_communication == "none":
            self.module = ringreduce.convert_sync_batchnorm(self.module, comm)
        self.model = with_exchange(config, self.module, comm)
        self.compression = make_compression(config, self.model, comm)
        self.optimizer = make_optimizer(config, self.module, comm)
        self.outer = make_outer(config, self.module, comm)
        self._clip_grad_norm = partial(nn.utils.clip_grad_norm_, [*self.module.parameters()])
        if config.sharded_optimizer:
            self._clip_grad_norm = self.optimizer.clip_grad_norm_
        self.schedule = LambdaLR(self.optimizer, partial(learning_rate_factor, config))
        self.timeline = ringreduce.Timeline(comm) if config.trace else None

    def _go_to(self, step: int) -> None:
        self.done = step
        sampler = ShardedSampler(
            len(self.data), self.config.batch, self.comm.rank, self.comm.size,  # type: ignore[arg-type]
            micro_batches=self.micro_batches, seed=self.config.seed, first_batch=step,
            shares=self._shares(),
        )  # fmt: skip
        self._batches = iter(DataLoader(self.data, batch_sampler=sampler))

    def _make_balance(self) -> Balance:
        batch, parts = self.config.batch, self.micro_batches
        if batch < self.comm.size * parts:
            raise ConfigError(f"batch: {batch} is less than {self.comm.size} ranks x {parts} micro-batches")
        return Balance(self.comm, batch=batch, every=self.config.balance_every, smallest=parts)

    def _shares(self) -> Callable[[int], Sequence[int]] | None:
        if self.balance:
            return self.balance.shares_at
        if not self.config.elastic:
            return None
        equal = equal_shares(self.config.batch, self.comm.size)  # whatever the number of ranks that are left
        return lambda number: equal

    def regroup(self, comm: ringreduce.Communicator, step: int) -> None:
        """Continues with other ranks, from one of their steps. The model and its optimizer have done so already."""
        self.comm = comm
        if self.balance is not None:
            self.balance.steps = step
        if self.outer is not None:
            # The optimizer, which is this rank's own, has made steps that do not count.
            for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
                group["lr"] = rate
        self._go_to(step)

    # --- a step --------------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        began = time.monotonic()
        with self._span("step"):
            if self.outer is not None and self.outer.idle:  # a slow rank leaves out the samples of a step
                for _ in range(self.micro_batches):
                    next(self._batches)
            else:
                self._losses, self._norm = self._learn()
            self.schedule.step()
            if self.outer is not None:
                with self._span("synchronisation"):
                    self.outer.step()
        seconds = time.monotonic() - began
        self.done += 1
        # The exchanges of gradients, of sharded parameters, or of whole models.
        parts: tuple[Any, ...] = (self.model, self.optimizer, self.outer)
        exchanges = [part.timings for part in parts if hasattr(part, "timings")]
        if self.timeline is not None:
            for timings in exchanges:
                self.timeline.step_timings(timings)
        communication = sum(timings.communication for timings in exchanges)
        exposed = sum(timings.exposed for timings in exchanges)
        if self.balance is not None:
            self.balance.step(seconds - exposed)
        return StepReport(self._losses, self._norm, seconds, communication, exposed)

    def _learn(self) -> tuple[list[float], float]:
        """Makes a step of the optimizer. Returns the losses of the micro-batches, and the norm of the gradient."""
        self.model.train()
        self.optimizer.zero_grad()
        losses = [self._backward(number) for number in range(self.micro_batches)]
        with self._span("optimizer"):
            norm = float(self._clip_grad_norm(self.config.clip or math.inf))
            self.optimizer.step()
        return torch.stack(losses).tolist(), norm

    def _backward(self, number: int) -> Any:
        """Runs the forward and backward pass of a micro-batch. The last backward pass exchanges the gradients.

        Returns:
            The mean loss, in proportion to the number of samples if the micro-batches of all ranks differ in size.
        """
        x, y = next(self._batches)
        # Dropout depends on the step and the shard, not on the rank. Checkpoints therefore need no generator state.
        shard = self.comm.rank * self.micro_batches + number
        seed = np.random.SeedSequence([self.config.seed, self.done, shard]).generate_state(1)[0]
        torch.manual_seed(int(seed))
        exchanging = self.optimizer if self.config.sharded_optimizer == 2 else self.model
        last = number == self.micro_batches - 1
        at_once = last or self.outer is not None or self.config.parameter_server  # or only in step()
        with nullcontext() if at_once else exchanging.no_sync():
            with self._span("forward"):
                loss = cross_entropy(self._logits(self.model, x), y.flatten())
            # The exchange averages over ranks and logical shards. Otherwise, accumulated gradients are summed. Each
            # sample counts once: this is the number of micro-batches, unless these differ in size.
            parts = self.config.batch / (len(x) * self.comm.size)
            share = 1 if self.config.logical_shards else parts
            with self._span("backward"):
                (loss / share).backward()  # type: ignore[no-untyped-call]
        return loss.detach() * (self.micro_batches / parts)

    def _logits(self, model: nn.Module, x: Any) -> Any:
        """Returns the logits, float32 [predictions, classes]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.autocast):
            return model(x).flatten(0, -2).float()

    def _span(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self.timeline is None else self.timeline.span(name, step=self.done + 1)

    def close(self) -> None:
        """Ends the parameter server, if there is one."""
        if self.config.parameter_server:
            self.optimizer.close()

    # --- evaluation ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Returns loss and accuracy on the first held-out samples. Each rank evaluates its share of them."""
        count = min(self.config.evaluate_samples, len(self.held_out))  # type: ignore[arg-type]
        share = Subset(self.held_out, range(self.comm.rank, count, self.comm.size))
        if isinstance(self.model, ringreduce.DataParallel):
            self.model.sync_buffers()  # all ranks use rank 0's running statistics
        self.module.eval()
        sums = np.zeros(3)  # loss, right predictions, predictions
        with self._span("evaluation"), self.outer.common() if self.outer else nullcontext():
            for x, y in DataLoader(share, max(self.config.batch // self.comm.size, 1)):
                logits, target = self._logits(self.module, x), y.flatten()
                loss = cross_entropy(logits, target, reduction="sum")
                sums += [loss.item(), (logits.argmax(-1) == target).sum().item(), len(target)]
        loss_sum, right, total = self.comm.all_reduce(sums).tolist()
        return {"validation_loss": loss_sum / total, "validation_accuracy": right / total}

    # --- checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns all state that the next step depends on.

        The position in the data follows from the number of steps done. The states of model and optimizer are those of
        a single process without sharding.
        """
        state: dict[str, Any] = {
            "config": self.config.model_dump(),
            "step": self.done,
            "threads": self.comm.all_gather(np.array([torch.get_num_threads()])).tolist(),
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        if self.compression is not None:
            state["compression"] = self.comm.all_gather_object(self.compression.state_dict())
        if self.balance is not None:
            state["balance"] = self.balance.state_dict()
        if self.outer is not None:  # each rank has a model and an optimizer of its own
            state["outer"] = self.outer.state_dict()
            state["copies"] = self.comm.gather_object({name: state[name] for name in ("model", "optimizer")})
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a state that any number of ranks saved. With the same number of ranks, results are bit-equal.

        Raises:
            ConfigError: The state was saved with other settings. The message names the first one that matters.
        """
        for name in KEPT:
            then, now = state["config"].get(name), getattr(self.config, name)
            if then != now:
                raise ConfigError(
                    f"resume: {name} is {then!r} in the checkpoint, but {now!r} in the settings"
                )
        same_ranks = len(state.get("threads", ())) == self.comm.size
        if same_ranks and not self.config.fixed_threads:
            torch.set_num_threads(state["threads"][self.comm.rank])
        self._rehearse()
        copies = (self.outer and state.get("copies")) or [state]
        own = copies[self.comm.rank % len(copies)]
        self.module.load_state_dict(own["model"])
        self.optimizer.load_state_dict(own["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        try:
            if "outer" not in state:
                # It begins with the loaded parameters.
                self.outer = make_outer(self.config, self.module, self.comm)
            elif self.outer is not None:
                self.outer.load_state_dict(state["outer"])
            if self.balance is not None and "balance" in state:
                self.balance.load_state_dict(state["balance"])
        except ValueError as error:
            raise ConfigError(f"resume: {error}") from error
        self._go_to(state["step"])
        # With another number of ranks or another method, the gradients not sent yet are lost: the error of one step.
        saved = state.get("compression", [])
        if self.compression is not None and len(saved) == self.comm.size:
            own = saved[self.comm.rank]
            if own["method"] == type(self.compression).__name__:
                self.compression.load_state_dict(own)

    def _rehearse(self) -> None:
        """Lets DataParallel arrange its buckets as it did when the checkpoint was written.

        The order of gradients in the first backward pass determines their places in the buckets, which affect the last
        bits of sums over three or more ranks. Compression must not see this pass, because its memory follows the order
        of its first step.
        """
        if self.compression is None and self.outer is None:
            for number in range(self.micro_batches):
                self._backward(number)
            self.optimizer.zero_grad()
