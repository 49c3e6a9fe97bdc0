"""One rank of data-parallel training: what a step is, and what must be kept to go on later."""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset

import ringreduce
from ringreduce.train.config import Config, ConfigError
from ringreduce.train.data import load_data
from ringreduce.train.models import make_model
from ringreduce.train.optimization import make_schedule
from ringreduce.train.parallel import Parallel
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
        self.parallel = Parallel(config, make_model(config), comm)
        self.schedule = make_schedule(config, self.parallel.optimizer)
        self._batches = self._load_from(0)

    def _load_from(self, step: int) -> Any:
        sampler = ShardedSampler(
            len(self.data), self.config.batch, self.comm.rank, self.comm.size,  # type: ignore[arg-type]
            micro_batches=self.micro_batches, seed=self.config.seed, first_batch=step,
        )  # fmt: skip
        return iter(DataLoader(self.data, batch_sampler=sampler))

    # --- a step --------------------------------------------------------------------------------------------

    def step(self) -> Step:
        began = time.monotonic()
        self.parallel.model.train()
        self.parallel.optimizer.zero_grad()
        with self._span("step"):
            losses = [self._backward(number) for number in range(self.micro_batches)]
            with self._span("optimizer"):
                norm = self.parallel.clip(self.config.clip or float("inf"))
                self.parallel.optimizer.step()
                self.schedule.step()
        seconds = time.monotonic() - began
        self.done += 1
        timings = self.parallel.timings
        if self.timeline is not None:
            self.timeline.step_timings(timings)
        return Step(torch.stack(losses).tolist(), norm, seconds, timings.communication, timings.exposed)

    def _backward(self, number: int) -> Any:
        """Forward and backward of a micro-batch; the last one's backward exchanges the gradients."""
        x, y = next(self._batches)
        torch.manual_seed(self._seed_of_dropout(number))
        with self.parallel.exchange(wanted=number == self.micro_batches - 1):
            with self._span("forward"):
                loss = cross_entropy(self._logits(self.parallel.model, x), y.flatten())
            # Averages over ranks, and over logical shards, are made for us; what else is accumulated is a sum.
            share = 1 if self.config.logical_shards else self.micro_batches
            with self._span("backward"):
                (loss / share).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _seed_of_dropout(self, number: int) -> int:
        """Other random numbers in every step and on every rank, which are the same if the step is done again.

        A logical shard has its own, whichever rank works on it. That the seed is known from the step is also why
        checkpoints need no state of the generator.
        """
        shard = self.comm.rank * self.micro_batches + number
        return int(np.random.SeedSequence([self.config.seed, self.done, shard]).generate_state(1)[0])

    def _logits(self, model: nn.Module, x: Any) -> Any:
        """float32 [predictions, classes]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.autocast):
            return model(x).flatten(0, -2).float()

    def _span(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self.timeline is None else self.timeline.span(name, step=self.done + 1)

    # --- evaluation ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the first held-out samples, of which each rank takes its share."""
        count = min(self.config.evaluate_samples, len(self.held_out))  # type: ignore[arg-type]
        share = Subset(self.held_out, range(self.comm.rank, count, self.comm.size))
        module = self.parallel.for_evaluation()
        sums = np.zeros(3)  # loss, right predictions, predictions
        with self._span("evaluation"):
            for x, y in DataLoader(share, max(self.config.batch // self.comm.size, 1)):
                logits, target = self._logits(module, x), y.flatten()
                loss = cross_entropy(logits, target, reduction="sum")
                sums += [loss.item(), (logits.argmax(-1) == target).sum().item(), len(target)]
        loss_sum, right, total = self.comm.all_reduce(sums).tolist()
        return {"validation_loss": loss_sum / total, "validation_accuracy": right / total}

    # --- checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on. The place in the data follows from the number of steps done."""
        return {
            "config": dataclasses.asdict(self.config),
            "step": self.done,
            **self.parallel.state_dict(),
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
        self._rehearse()
        self.parallel.load_state_dict(state)
        self.schedule.load_state_dict(state["schedule"])
        self.done = state["step"]
        self._batches = self._load_from(self.done)

    def _rehearse(self) -> None:
        """Has DataParallel find its buckets, as it had when the checkpoint was written.

        It puts gradients into buckets in the order in which they came in its first backward pass, and where they are
        may show in the last bits of sums over three or more ranks. Compression keeps its memory by the order of
        its first step, and so must not see one here.
        """
        if self.parallel.compression is None:
            for number in range(self.micro_batches):
                self._backward(number)
            self.parallel.optimizer.zero_grad()


def _micro_batches(config: Config, comm: ringreduce.Communicator) -> int:
    """Backward passes of a rank in each step."""
    if not config.logical_shards:
        return config.accumulation
    if config.logical_shards % comm.size:
        raise ConfigError(
            f"logical_shards: {config.logical_shards} is not a multiple of the {comm.size} ranks"
        )
    return config.logical_shards // comm.size
