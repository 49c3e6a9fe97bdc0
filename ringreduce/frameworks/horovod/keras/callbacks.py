"""Horovod's callbacks for Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.tensorflow.functions import broadcast_variables
from ringreduce.frameworks.horovod.tensorflow.operations import grouped_allreduce
from ringreduce.frameworks.tensorflow.keras import unshared

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]  # fmt: skip

Callback: Any = keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(Callback):  # type: ignore[misc]
    """Copies the root's variables, those of the optimizer included, to all ranks when training begins.

    Args:
        root_rank: the rank whose variables all ranks get.
        device: ignored.
        local_variables: variables to leave out.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self._root, self._left_out = root_rank, {id(one) for one in local_variables or ()}
        self.broadcast_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model.built:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._broadcast()  # of a model that the first batch has built

    def _broadcast(self) -> None:
        if not self.broadcast_done:
            variables = unshared(self.model.variables + self.model.optimizer.variables)
            broadcast_variables([one for one in variables if id(one) not in self._left_out], self._root)
            self.broadcast_done = True


class MetricAverageCallback(Callback):  # type: ignore[misc]
    """Averages an epoch's metrics over the ranks. Put it before callbacks that use them.

    Args:
        device: ignored.
        process_set: the ranks. Others keep their own metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or {})
        if names and self._set.included():
            own = [tf.cast(logs[name], tf.float64) for name in names]
            averages = grouped_allreduce(own, process_set=self._set)
            logs.update({name: float(value) for name, value in zip(names, averages, strict=True)})


class LearningRateScheduleCallback(Callback):  # type: ignore[misc]
    """Multiplies a learning rate in some epochs.

    Args:
        initial_lr: the learning rate to multiply.
        multiplier: a number, or a function of the epoch, which is a fraction if staircase is False.
        start_epoch, end_epoch: the first epoch, and the one after the last; None for no end.
        staircase: whether the rate changes only between epochs.
        momentum_correction: whether to scale the momentum with the rate, in optimizers that have one.
        steps_per_epoch: the number of batches of an epoch, if Keras does not know it.

    Raises:
        ValueError: initial_lr is None.
    """

    def __init__(
        self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
        end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr must be a number")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        constant = not callable(multiplier)
        self.staircase = staircase or constant
        self.multiplier: Any = (lambda epoch: multiplier) if constant else multiplier
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("steps_per_epoch must be given: Keras does not know the number of batches")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._adjust(epoch)
        elif not self.staircase:
            self._adjust(epoch + batch / float(self.steps_per_epoch or 1))

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, after = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = after
        # The steps that Keras keeps contain the old rate.
        if self.momentum_correction and getattr(optimizer, "momentum", None) and before:
            for step in getattr(optimizer, "momentums", ()):
                step.assign(step * (after / before))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / hvd.size() to initial_lr in the first epochs.

    See Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (arXiv 1706.02677).

    Args:
        warmup_epochs: the number of epochs.
        verbose: 1 prints the rate that is reached.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
        steps_per_epoch: int | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / float(self.steps_per_epoch or 1)  # the last batch reaches the full rate
            return 1.0 / job.size() * (epoch * (job.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {logs['lr']}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """``keras.callbacks.ModelCheckpoint`` that keeps the best model. ``filepath`` may be set later.

    Args:
        filepath: the file, which ends in ".keras".
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:  # fmt: skip
        super().__init__(filepath, monitor, verbose, save_best_only=True, mode=mode, save_freq=save_freq)
