"""ShardedOptimizer: a torch optimizer whose state and gradients are divided among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.communicator.world import chosen
from ringreduce.errors import Error
from ringreduce.training.foundation.agreement import check_not_averaged, check_positive, check_whole
from ringreduce.training.foundation.bucket import Slot
from ringreduce.training.foundation.kinds import Cut, choose_cut
from ringreduce.training.foundation.optimizer_state import cut, gather_share, numbered, numbers_in
from ringreduce.training.foundation.part import copy_options, options
from ringreduce.training.foundation.shares import Share
from ringreduce.training.foundation.timings import StepTimings
from ringreduce.training.sharded_optimizer.division import Division
from ringreduce.training.sharded_optimizer.regroupable import Regroupable
from ringreduce.training.sharded_optimizer.share_layout import ShareLayout

__all__ = ["ShardedOptimizer"]

MB = 1 << 20


class ShardedOptimizer(Regroupable, torch.optim.Optimizer):
    """Runs a torch optimizer on this rank's share of the parameters only, and exchanges the results.

    This is ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020).
    Each rank holds the optimizer's state of its share, about 1/size of the whole.

    - ``stage=1``: wrap the model in :class:`ringreduce.DataParallel` (or torch's DDP), which averages the gradients.
      Accumulate gradients under the wrapper's ``no_sync()``. The optimizer does not communicate gradients.
    - ``stage=2``: do not wrap the model. During the backward pass, each bucket of gradients is reduce-scattered as soon
      as it is complete. A rank keeps the averages of its share, and ``parameter.grad`` is None afterwards. Several
      backward passes add up in the shares. Under :meth:`no_sync` they add up in ``parameter.grad`` and send nothing.
      Clip with :meth:`clip_grad_norm_`.

    :meth:`step` updates this rank's share and gathers all ranks' parameters. A parameter does not change if no rank has
    a gradient for it. In stage 2, ranks without a gradient contribute zeros. All ranks begin with rank 0's parameters,
    and must make the same calls, backward passes included. Other calls on the group must come in the same order on all
    ranks; ``comm.split(0)`` makes a separate group.

    The parameters become views of the optimizer's memory, so move and convert the model first. ``param_groups`` work as
    in any optimizer, and schedulers may change them. ``state`` holds this rank's pieces; :meth:`state_dict` joins those
    of all ranks. ``timings`` tells when the buckets of the last step were scattered and gathered, and how long the step
    waited for them.

    Args:
        params: parameters or parameter groups, the same on all ranks.
        optimizer_class: the class of the inner optimizer, from torch or compatible with it.
        comm: the group. None takes :func:`ringreduce.world`.
        stage: 1 or 2.
        shard: how buckets are divided. "elements" makes equal shares, which may cut parameters; the inner optimizer
            gets one-dimensional slices. "parameters" makes shares of whole parameters, as equal as possible. None
            picks "elements" for torch's element-wise optimizers, and "parameters", which is always right, for others.
        bucket_mb: the MiB of parameters that are exchanged together. Stage 2 holds the whole gradients of two buckets.
        copies: the number of other ranks that hold a copy of each rank's state, so that :mod:`ringreduce.elastic` can
            survive the loss of as many neighbouring ranks at once. A copy takes the memory of another share. In stage 2
            ranks send their share of the gradients to the ranks that have copies, before each step.
        defaults: arguments of optimizer_class.

    Raises:
        ValueError: an argument is invalid, or the optimizer cannot be sharded.
        Error: the ranks' parameters or arguments differ. The message names the first difference.
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
        copies: int = 0,
        **defaults: Any,
    ) -> None:
        comm = chosen(comm)
        if isinstance(stage, bool) or not isinstance(stage, int) or stage not in (1, 2):
            raise ValueError(f"stage must be 1 or 2, not {stage}")
        check_positive(bucket_mb, "bucket_mb")
        check_whole(copies, "copies", 0)
        if not isinstance(params, Iterable):
            raise TypeError(f"params must be parameters or groups of them, not {type(params).__name__}")
        shard = choose_cut(optimizer_class, shard)
        settings = {
            "optimizer_class": optimizer_class.__name__, "stage": stage, "shard": shard, "bucket_mb": bucket_mb,
            "copies": copies,
        }  # fmt: skip
        self.timings = StepTimings()
        self.elastic: Any = None  # agrees with other ranks before an update: ringreduce.elastic
        self._made_by = optimizer_class, defaults
        self._copies, self._stage = copies, stage
        self._division = Division(comm, ShareLayout(comm, shard, bucket_mb * MB, settings), stage, copies)
        super().__init__(params, defaults)
        self._shard_groups(0)
        if not self._division.slots:
            raise ValueError("params: no parameter needs a gradient")
        self._division.begin(optimizer_class, defaults, self.param_groups)
        self.defaults = self._inner.defaults
        self.state = self._inner.state
        copy_options(self._inner.param_groups, self.param_groups)

    @property
    def comm(self) -> Communicator:
        """The group."""
        return self._division.comm

    @property
    def _inner(self) -> Any:
        return self._division.own.inner

    @property
    def _shares(self) -> list[Share]:
        return self._division.shares

    def _shard_groups(self, begin: int) -> None:
        """Divides the parameters of groups[begin:]. Parameters without requires_grad are left alone."""
        slots: list[Slot] = []
        groups: dict[Slot, int] = {}
        number = 0
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if index >= begin and parameter.requires_grad:
                    slots.append(Slot(number, str(number), parameter))
                    groups[slots[-1]] = index
                number += 1
        if self._division.reducer is not None:
            check_not_averaged((slot.name, slot.parameter) for slot in slots)
        settings = {
            f"{name} of group {begin + index}": value
            for index, group in enumerate(self.param_groups[begin:])
            for name, value in options(group).items()
            if not callable(value)  # its text is an address, which differs between ranks
        }
        self._division.layout.check(slots, settings)
        shares = self._division.add(slots, groups)
        for share in shares:
            share.broadcast()
        self._division.follow(shares, slots, self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters. Every rank must call it."""
        super().add_param_group(param_group)
        if self._inner is not None:
            number = len(self.param_groups) - 1
            self._shard_groups(number)
            for part in self._division.parts:
                part.inner.add_param_group(part.group(number, self.param_groups[number]))
            copy_options(self._inner.param_groups[number:], self.param_groups[number:])

    # --- gradients -----------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward passes add up gradients on this rank only, and send nothing.

        The next backward pass outside sends the sum. Only in stage 2.
        """
        reducer = self._division.reducer
        if reducer is None:
            raise Error("in stage 1 the wrapped model exchanges gradients: use its no_sync()")
        before, reducer.synchronise = reducer.synchronise, False
        try:
            yield
        finally:
            reducer.synchronise = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients. In stage 2 it always sets them to None."""
        reducer = self._division.reducer
        super().zero_grad(set_to_none or reducer is not None)
        if reducer is not None:
            reducer.settle(quiet=True)
            reducer.restarts += 1
        self._division.forget()

    def clip_grad_norm_(self, max_norm: float) -> Any:
        """Scales all gradients, if necessary, so that their total norm is at most max_norm.

        Every rank must call it, between the backward passes and the step.

        Returns:
            The Euclidean norm before scaling, as a zero-dimensional tensor; the same on all ranks.

        Raises:
            Error: in stage 2, a backward pass failed on some rank.
        """
        slots = self._division.slots
        if self._division.reducer is None:
            return torch.nn.utils.clip_grad_norm_([slot.parameter for slot in slots], max_norm)
        self._division.hand_over([self._division.own])
        own = [piece.parameter for piece in self._division.own.pieces]
        norm_here = torch.nn.utils.get_total_norm([p.grad for p in own if p.grad is not None])
        square = norm_here.to(slots[0].parameter.device, torch.float64).reshape(1) ** 2
        doubles = any(slot.parameter.dtype == torch.float64 for slot in slots)  # the same on all ranks
        norm = self.comm.all_reduce(square).sqrt().reshape(()).to(torch.float64 if doubles else torch.float32)
        torch.nn.utils.clip_grads_with_norm_(own, max_norm, norm)
        return norm

    # --- the step ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters. Every rank must call it.

        In stage 2 it consumes the gradients: later ones do not add to them, even without :meth:`zero_grad`.

        Args:
            closure: a function that computes the gradients again. It is called once, at the start.

        Returns:
            The result of closure.

        Raises:
            Error: the memory of a parameter was replaced, or a parameter that was frozen at first has a gradient. Or in
                stage 2, a backward pass failed on some rank. All ranks raise this error; after :meth:`zero_grad`
                training can continue.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        self._division.hand_over([self._division.own])
        self._division.send_gradients()
        self._division.hand_over(self._division.parts[1:])
        if self.elastic is not None:
            self.elastic.commit()
        for part in self._division.parts:
            part.step(self.param_groups)
        copy_options(self._inner.param_groups, self.param_groups)
        if self.elastic is None:
            self._division.gather()
        else:
            self.elastic.finish(self._division.gather)
        self._division.forget()
        self.timings = self._division.exchange.meter.take()
        return loss

    def _check_parameters(self) -> None:
        for share in self._shares:
            for slot in share.bucket.slots:
                slot.check_gradient()
                if not share.holds(slot):
                    raise Error(
                        f"the memory of parameter {slot.number} was replaced after ShardedOptimizer was created: move "
                        "and convert the model first, then create its optimizer"
                    )
        sharded = {slot.parameter for slot in self._division.slots}
        every = (p for group in self.param_groups for p in group["params"])
        for number, parameter in enumerate(every):
            if parameter.grad is not None and parameter not in sharded:
                raise Error(
                    f"parameter {number} has a gradient, but needed none when it was passed to ShardedOptimizer"
                )

    # --- saving --------------------------------------------------------------------------------------------

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Returns the whole state, the same as that of the inner optimizer without sharding. Every rank must call it.

        The inner optimizer can load it, and so can a ShardedOptimizer in a group of any size.

        Args:
            root: the rank that gets the state; the others get {}. None returns it on all ranks.

        Returns:
            A dict like that of torch.optim.Optimizer.state_dict(), with its tensors on the CPU.
        """
        found: dict[int, Any] = {}
        for share in self._shares:
            own = self._division.own.of(share)
            found.update(gather_share(self.comm, share, own, self._inner.state, root))
        if root not in (None, self.comm.rank):
            return {}
        return {"state": dict(sorted(found.items())), "param_groups": numbered(self.param_groups)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a whole state, from :meth:`state_dict` or the optimizer without sharding, and keeps this rank's share.

        Args:
            state_dict: the state, the same on all ranks.

        Raises:
            ValueError: the number or the lengths of its parameter groups differ.
        """
        saved = state_dict["param_groups"]
        ids = numbers_in(saved, self.param_groups)
        copy_options(saved, self.param_groups)
        for part in self._division.parts:
            state: dict[int, Any] = {}
            inside = part.inner.state_dict()["param_groups"]
            for index, group in enumerate(inside):
                pieces = [piece for piece in part.pieces if piece.group == index]
                for place, piece in zip(group["params"], pieces, strict=True):
                    if ids[piece.slot.number] in state_dict["state"]:
                        state[place] = cut(piece, state_dict["state"][ids[piece.slot.number]])
            copy_options(saved, inside)
            part.inner.load_state_dict({"state": state, "param_groups": inside})
        self.state = self._inner.state

    def __getstate__(self) -> Any:
        raise TypeError("a ShardedOptimizer cannot be copied or pickled; save its state_dict()")
