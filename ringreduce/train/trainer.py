"""One rank of data-parallel training: what a step is, and what must be kept to go on later."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import ringreduce
from ringreduce.train.config import Config, ConfigError
from ringreduce.train.data import load_data
from ringreduce.train.models import make_model
from ringreduce.train.optimization import make_optimizer, make_schedule
from ringreduce.train.sampler import ShardedSampler

__all__ = ["Step", "Trainer"]

# What a checkpoint must have been written with to be gone on from: all that shapes the weights, and what the place in
# the data depends on. The number of ranks is not among it.
KEPT = (
    "task", "layers", "heads", "width", "context", "channels", "text_bytes", "batch", "seed", "optimizer",
)  # fmt: skip


@dataclass
class Step:
    """An optimizer step of one rank. Times are in seconds."""

    losses: list[float]  # of its micro-batches
    norm: float  # of the averaged gradient, before clipping
    seconds: float
    communication: float  # of the gradients' exchange, and of it
    exposed: float  # what the training thread waited for


class Trainer:
    """The model, its data and its optimizer on one rank.

    Every method is called by all ranks of ``comm``.

    Raises:
        ConfigError: the settings do not go with each other, or with the number of ranks.
    """

    def __init__(
        self, config: Config, comm: ringreduce.Communicator, timeline: ringreduce.Timeline | None = None
    ) -> None:
        self.config, self.comm, self.timeline = config, comm, timeline
        self.done = 0  # steps
        self.micro_batches = _micro_batches(config, comm)
        self.data, self.held_out = load_data(config)
        self.model = _data_parallel(config, make_model(config), comm)
        self.optimizer = make_optimizer(config, self.model.module, comm)
        self.schedule = make_schedule(config, self.optimizer)
        self._batches = self._load_from(0)

    @property
    def samples_per_step(self) -> int:
        return self.config.batch

    def _load_from(self, step: int) -> Any:
        sampler = ShardedSampler(
            len(self.data), self.config.batch, self.comm.rank, self.comm.size,  # type: ignore[arg-type]
            micro_batches=self.micro_batches, seed=self.config.seed, first_batch=step,
        )  # fmt: skip
        return iter(DataLoader(self.data, batch_sampler=sampler))

    # --- a step --------------------------------------------------------------------------------------------

    def step(self) -> Step:
        began = time.monotonic()
        self.model.train()
        self.optimizer.zero_grad()
        losses = [self._backward(number) for number in range(self.micro_batches)]
        norm = self._clip()
        self.optimizer.step()
        self.schedule.step()
        self.done += 1
        ended = time.monotonic()
        timings = self.model.timings
        if self.timeline is not None:
            self.timeline.add("step", began, ended, step=self.done)
            self.timeline.step_timings(timings)
        found = torch.stack(losses).tolist()
        return Step(found, norm, ended - began, timings.communication, timings.exposed)

    def _backward(self, number: int) -> Any:
        """Forward and backward of a micro-batch; the last one's backward exchanges the gradients."""
        x, y = next(self._batches)
        torch.manual_seed(self._seed_of_dropout(number))
        last = number == self.micro_batches - 1
        with nullcontext() if last else self.model.no_sync():
            loss = self._loss(self.model, x, y)
            # DataParallel averages over ranks, and over logical shards by itself; what else is accumulated is a sum.
            share = 1 if self.config.logical_shards else self.micro_batches
            (loss / share).backward()
        return loss.detach()

    def _seed_of_dropout(self, number: int) -> int:
        """Other random numbers in every step and on every rank, which are the same if the step is done again.

        A logical shard has its own, whichever rank works on it. That the seed is known from the step is also why
        checkpoints need no state of the generator.
        """
        shard = self.comm.rank * self.micro_batches + number
        return int(np.random.SeedSequence([self.config.seed, self.done, shard]).generate_state(1)[0])

    def _loss(self, model: nn.Module, x: Any, y: Any, reduction: str = "mean") -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.autocast):
            logits = model(x)
        return nn.functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten(), reduction=reduction)

    def _clip(self) -> float:
        limit = self.config.clip or float("inf")
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    # --- evaluation ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the first held-out samples, of which each rank takes its share."""
        count = min(self.config.evaluate_samples, len(self.held_out))  # type: ignore[arg-type]
        share = Subset(self.held_out, range(self.comm.rank, count, self.comm.size))
        module = self.model.module.eval()
        sums = np.zeros(3)  # loss, right predictions, predictions
        for x, y in DataLoader(share, max(self.config.batch // self.comm.size, 1)):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.config.autocast):
                logits = module(x).float().flatten(0, -2)
            loss = nn.functional.cross_entropy(logits, y.flatten(), reduction="sum")
            right = (logits.argmax(-1) == y.flatten()).sum()
            sums += [loss.item(), right.item(), y.numel()]
        loss_sum, right_sum, total = self.comm.all_reduce(sums).tolist()
        return {"validation_loss": loss_sum / total, "validation_accuracy": right_sum / total}

    # --- checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on. The place in the data follows from the number of steps done."""
        return {
            "config": dataclasses.asdict(self.config),
            "step": self.done,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what any number of ranks has saved.

        Raises:
            ConfigError: it was saved with other settings; the first that matters is named.
        """
        for name in KEPT:
            then, now = state["config"].get(name), getattr(self.config, name)
            if then != now:
                raise ConfigError(f"resume: {name} was {then!r} in the checkpoint, and is {now!r} now")
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.done = state["step"]
        self._batches = self._load_from(self.done)


def _micro_batches(config: Config, comm: ringreduce.Communicator) -> int:
    """Backward passes of a rank in each step."""
    if not config.logical_shards:
        return config.accumulation
    if config.logical_shards % comm.size:
        raise ConfigError(
            f"logical_shards: {config.logical_shards} is not a multiple of the {comm.size} ranks"
        )
    return config.logical_shards // comm.size


def _data_parallel(
    config: Config, model: nn.Module, comm: ringreduce.Communicator
) -> ringreduce.DataParallel:
    if config.task == "digits" and config.sync_batch_norm:
        model = ringreduce.convert_sync_batch_norm(model, comm)
    return ringreduce.DataParallel(
        model,
        comm,
        bucket_mb=config.bucket_mb,
        first_bucket_mb=config.first_bucket_mb,
        static_graph=config.static_graph,
        wire=None if config.wire == "float32" else config.wire,
        logical_shards=config.logical_shards or None,
    )
