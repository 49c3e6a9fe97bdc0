"""ShardedOptimizer: any torch optimizer, with its state and the gradients divided among the ranks."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ringreduce import on_world
from ringreduce.communicator import Communicator
from ringreduce.data_parallel.agreement import check_not_averaged
from ringreduce.data_parallel.timings import StepTimings
from ringreduce.errors import Error
from ringreduce.sharded_optimizer.bucket import Bucket, Slot
from ringreduce.sharded_optimizer.gradients import GradientShards
from ringreduce.sharded_optimizer.groups import copy_options, options
from ringreduce.sharded_optimizer.kinds import Cut, choose_cut
from ringreduce.sharded_optimizer.layout import Layout
from ringreduce.sharded_optimizer.state import cut, gather_bucket
from ringreduce.sharded_optimizer.waits import Waits

__all__ = ["ShardedOptimizer"]

MB = 1 << 20


class ShardedOptimizer(torch.optim.Optimizer):
    """Runs a torch optimizer on this rank's share of the parameters only, and exchanges the results.

    ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020). Each
    rank holds the optimizer's state of its share, about 1/size of all.

    - ``stage=1``: gradients arrive averaged, so wrap the model in :class:`ringreduce.DataParallel` (or torch's DDP),
      and accumulate under the wrapper's ``no_sync()``. The optimizer communicates no gradient.
    - ``stage=2``: do not wrap the model. During the backward pass each bucket of gradients is reduce-scattered the
      moment it is complete; a rank keeps the averages of its share, and ``parameter.grad`` is None afterwards. Several
      backward passes add up in the shares; under :meth:`no_sync` they add up in ``parameter.grad`` and send nothing.
      Clip with :meth:`clip_grad_norm_`.

    :meth:`step` updates this rank's share and gathers all ranks' parameters. A parameter that no rank has a gradient of
    is left alone; in stage 2 a rank without one counts as zeros. All ranks begin with rank 0's parameters, and all
    must make the same calls, backward passes included. Nothing else may use the group meanwhile but in the same order
    on all ranks; ``comm.split(0)`` gives a group of one's own.

    The parameters become views of the optimizer's memory: move and convert the model before. ``param_groups`` are as
    ever, and schedulers may change them. ``state`` holds this rank's pieces; :meth:`state_dict` joins all ranks'.
    ``timings`` say when the last step's buckets were scattered and gathered, and how long it waited for them.

    Args:
        params: parameters or groups of them, the same on all ranks.
        optimizer_class: of torch's optimizers or others like them.
        comm: the group; None: :func:`ringreduce.world`.
        stage: 1 or 2.
        shard: "elements": equal shares of each bucket, wherever that cuts; the optimizer sees one-dimensional slices
            of parameters. "parameters": whole ones, shares as equal as they come. None: "elements" for those of
            torch's optimizers that treat each element by itself, else "parameters", which is right for all.
        bucket_mb: parameters, in MiB, that are exchanged together. Stage 2 holds two buckets' whole gradients.
        defaults: for optimizer_class.

    Raises:
        ValueError: an argument is bad, or the optimizer cannot be sharded.
        Error: the ranks' parameters or arguments differ; the message says what differs first.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: Any,
        comm: Communicator | None = None,
        *,
        stage: int = 2,
        shard: Cut | None = None,
        bucket_mb: float = 25.0,
        **defaults: Any,
    ) -> None:
        if stage not in (1, 2):
            raise ValueError(f"stage must be 1 or 2, not {stage}")
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb must be positive, not {bucket_mb}")
        shard = choose_cut(optimizer_class, shard)
        settings = {
            "optimizer_class": optimizer_class.__name__, "stage": stage, "shard": shard, "bucket_mb": bucket_mb,
        }  # fmt: skip
        self.comm = on_world.world() if comm is None else comm
        self.timings = StepTimings()
        self._layout = Layout(self.comm, shard, bucket_mb * MB, settings)
        self._waits = Waits()
        self._gradients = GradientShards(self._waits) if stage == 2 else None
        self._slots: list[Slot] = []
        self._pieces: list[Any] = []  # this rank's
        self._buckets: list[Bucket] = []
        self._inner: Any = None
        if self._gradients is not None:
            weakref.finalize(self, self._gradients.unhook)
        super().__init__(params, defaults)
        self._shard_groups(0)
        if not self._slots:
            raise ValueError("params: no parameter needs a gradient")
        self._make_inner(optimizer_class, defaults)

    def _make_inner(self, optimizer_class: Any, defaults: dict[str, Any]) -> None:
        own = [self._own_part(number) for number in range(len(self.param_groups))]
        self._inner = optimizer_class(own, **defaults)
        self.defaults = self._inner.defaults
        self.state = self._inner.state
        copy_options(self._inner.param_groups, self.param_groups)

    def _shard_groups(self, begin: int) -> None:
        """Divides the parameters of groups from this number on; those without requires_grad stay as they are."""
        slots, number = [], 0
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if index >= begin and parameter.requires_grad:
                    slots.append(Slot(number, index, parameter))
                number += 1
        if self._gradients is not None:
            check_not_averaged((str(slot.number), slot.parameter) for slot in slots)
        settings = {
            f"{name} of group {begin + index}": value
            for index, group in enumerate(self.param_groups[begin:])
            for name, value in options(group).items()
            if not callable(value)  # its text is an address
        }
        made = self._layout.make(slots, settings)
        self._slots += slots
        self._pieces += [slot.piece for slot in slots if slot.piece is not None]
        self._buckets += made
        if self._gradients is not None:
            self._gradients.follow(made)

    def _own_part(self, number: int) -> dict[str, Any]:
        """A parameter group for the optimizer inside: this rank's pieces."""
        pieces = [slot.piece for slot in self._slots if slot.group == number and slot.piece is not None]
        return {**options(self.param_groups[number]), "params": pieces}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters. Every rank must call it."""
        super().add_param_group(param_group)
        if self._inner is not None:
            number = len(self.param_groups) - 1
            self._shard_groups(number)
            self._inner.add_param_group(self._own_part(number))
            copy_options(self._inner.param_groups[number:], self.param_groups[number:])

    # --- gradients -----------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it add up gradients on this rank only; the next one outside sends the sum. Stage 2."""
        if self._gradients is None:
            raise Error("in stage 1 the model exchanges gradients: use its no_sync()")
        before, self._gradients.synchronise = self._gradients.synchronise, False
        try:
            yield
        finally:
            self._gradients.synchronise = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients. In stage 2 there are none then, whatever set_to_none says."""
        super().zero_grad(set_to_none or self._gradients is not None)
        self._forget()

    def _forget(self) -> None:
        if self._gradients is not None:
            self._gradients.clear()
        for piece in self._pieces:
            piece.grad = None

    def clip_grad_norm_(self, max_norm: float) -> Any:
        """Scales all gradients, if need be, so that the norm of all of them together is at most max_norm.

        Every rank must call it, between the backward passes and the step.

        Returns:
            The Euclidean norm before, a tensor without dimensions; the same on all ranks.
        """
        if self._gradients is None:
            return torch.nn.utils.clip_grad_norm_([slot.parameter for slot in self._slots], max_norm)
        self._hand_over()
        own = torch.nn.utils.get_total_norm([p.grad for p in self._pieces if p.grad is not None])
        square = own.to(self._buckets[0].memory.device, torch.float64).reshape(1) ** 2
        doubles = any(slot.parameter.dtype == torch.float64 for slot in self._slots)  # of any rank's share
        norm = self.comm.all_reduce(square).sqrt().reshape(()).to(torch.float64 if doubles else torch.float32)
        torch.nn.utils.clip_grads_with_norm_(self._pieces, max_norm, norm)
        return norm

    def _hand_over(self) -> None:
        """Gives the pieces their averaged gradients."""
        if self._gradients is None:
            for slot in self._slots:
                if slot.piece is not None:
                    gradient = slot.parameter.grad
                    slot.piece.grad = None if gradient is None else slot.piece_of(gradient.detach())
            return
        self._gradients.settle()
        used = np.array([slot.came for slot in self._slots], np.uint8)
        self.comm.all_reduce(used, "max")
        for slot, by_any in zip(self._slots, used, strict=True):
            if slot.piece is not None:
                slot.piece.grad = slot.bucket.gradient_of(slot) if by_any else None

    # --- the step ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters. Every rank must call it.

        In stage 2 it uses the gradients up: later ones do not add to them, with or without :meth:`zero_grad`.

        Args:
            closure: computes the gradients anew; called once, before all else.

        Returns:
            What closure has returned.

        Raises:
            Error: a parameter is no longer where the optimizer has put it, or was frozen when it was given.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        self._hand_over()
        copy_options(self.param_groups, self._inner.param_groups)
        self._inner.step()
        copy_options(self._inner.param_groups, self.param_groups)
        self._gather_parameters()
        self._forget()
        self.timings = self._waits.take()
        return loss

    def _check_parameters(self) -> None:
        for slot in self._slots:
            if not slot.bucket.is_home(slot):
                raise Error(
                    f"parameter {slot.number} has other memory than ShardedOptimizer gave it: move and convert the "
                    "model first, then make its optimizer"
                )
        sharded = {slot.parameter for slot in self._slots}
        every = (p for group in self.param_groups for p in group["params"])
        for number, parameter in enumerate(every):
            if parameter.grad is not None and parameter not in sharded:
                raise Error(
                    f"parameter {number} needed no gradient when ShardedOptimizer was given it, but has one"
                )

    def _gather_parameters(self) -> None:
        under_way = [(bucket, time.monotonic(), bucket.all_gather()) for bucket in self._buckets]
        for index, (bucket, submitted, work) in enumerate(under_way):
            self._waits.wait(index, bucket, submitted, work)

    # --- saving --------------------------------------------------------------------------------------------

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """The whole state, as the optimizer would have it without sharding. Every rank must call it.

        The optimizer itself can load it, and so can a ShardedOptimizer in a group of any size.

        Args:
            root: the rank that gets it (the others get {}); None: all.

        Returns:
            What torch.optim.Optimizer.state_dict() returns, its tensors on the CPU.
        """
        found: dict[int, Any] = {}
        for bucket in self._buckets:
            found.update(gather_bucket(self.comm, bucket, self._inner.state, root))
        if root not in (None, self.comm.rank):
            return {}
        groups, number = [], 0
        for group in self.param_groups:
            end = number + len(group["params"])
            groups.append({**group, "params": list(range(number, end))})
            number = end
        return {"state": dict(sorted(found.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a whole state, of :meth:`state_dict` or of the optimizer without sharding, and keeps a share of it.

        Args:
            state_dict: the same on all ranks.

        Raises:
            ValueError: it has other groups, or groups of other lengths.
        """
        saved = state_dict["param_groups"]
        lengths = [[len(group["params"]) for group in groups] for groups in (self.param_groups, saved)]
        if lengths[0] != lengths[1]:
            raise ValueError(f"state_dict has groups of {lengths[1]} parameters, not of {lengths[0]}")
        ids = [number for group in saved for number in group["params"]]
        state: dict[int, Any] = {}
        inside = self._inner.state_dict()["param_groups"]
        for index, group in enumerate(inside):
            pieces = [slot for slot in self._slots if slot.group == index and slot.piece is not None]
            for place, slot in zip(group["params"], pieces, strict=True):
                if ids[slot.number] in state_dict["state"]:
                    state[place] = cut(slot, state_dict["state"][ids[slot.number]])
        copy_options(saved, inside)
        copy_options(saved, self.param_groups)
        self._inner.load_state_dict({"state": state, "param_groups": inside})
        self.state = self._inner.state

    def __getstate__(self) -> Any:
        raise TypeError("a ShardedOptimizer cannot be copied or pickled; save its state_dict()")
