"""DistributedOptimizer: an optimizer whose gradients are averaged over the ranks while they are computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from ringreduce.frameworks.horovod import job
from ringreduce.frameworks.horovod.arguments import chosen_groups, scaled_op
from ringreduce.frameworks.horovod.process_sets import ProcessSet, global_process_set
from ringreduce.frameworks.horovod.reductions import Op
from ringreduce.frameworks.horovod.request import Request
from ringreduce.frameworks.horovod.torch.compression import Compression
from ringreduce.frameworks.horovod.torch.reducing import (
    grouped_allreduce_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Op.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Sequence[Sequence[Any]] | int | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer of the same class, parameters and state, that steps with all ranks' gradients.

    Each gradient is handed over as soon as the backward pass has computed it; ``step()`` waits for all of them. With
    op=Adasum, ``step()`` steps with this rank's gradients and then combines the ranks' changes of the parameters.

    Args:
        named_parameters: the model's named parameters, which give the names of the all-reduces. Default: numbers.
        compression: how gradients travel.
        backward_passes_per_step: the backward passes before each step, whose gradients are added on this rank.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: for op=Average, divides gradients by this before they are added, and by the number
            of ranks over this afterwards.
        num_groups: the number of groups into which parameters are divided, each of which travels as one; 0 for none.
        groups: lists of parameters, each of which travels as one; other parameters travel alone. Or num_groups.
        sparse_as_dense: makes sparse gradients dense while they are exchanged.
        process_set: the ranks that take part. Other ranks step with their own gradients.

    Raises:
        ValueError: an argument is invalid, or does not fit the optimizer's parameters.
    """
    scale = scaled_op(op, gradient_predivide_factor, process_set)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    base = type(optimizer)
    mixin = _DistributedAdasum if scale["op"] is Op.Adasum else _Distributed
    made: Any = object.__new__(type(base.__name__, (mixin, base), {}))
    # The same groups and state, so that schedulers and checkpoints of the optimizer still work. A scheduler may have
    # set its own step.
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    made._begin(
        named_parameters, compression, backward_passes_per_step, scale, sparse_as_dense,
        _parts(optimizer, groups, num_groups), process_set,
    )  # fmt: skip
    return made


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parts(optimizer: Any, groups: Any, num_groups: int) -> list[list[Any]]:
    """Returns lists of parameters, each of which travels as one."""
    parameters = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
    groups, num_groups = chosen_groups(groups, num_groups, torch.Tensor, "parameters")
    if groups is None and num_groups:
        each, rest = divmod(len(parameters), min(num_groups, len(parameters)))
        ends = [0]
        while ends[-1] < len(parameters):
            ends.append(ends[-1] + each + (len(ends) <= rest))
        return [parameters[begin:end] for begin, end in pairwise(ends)]
    known = {id(parameter) for parameter in parameters}
    own = [[one for one in group if id(one) in known] for group in groups or []]
    grouped = [id(one) for group in own for one in group]
    if len(set(grouped)) < len(grouped):
        raise ValueError("groups must not have a parameter twice")
    alone = [[parameter] for parameter in parameters if id(parameter) not in set(grouped)]
    return [group for group in own if group] + alone


def _names(optimizer: Any, named_parameters: Any) -> dict[Any, str]:
    """Returns the name of each parameter."""
    if named_parameters is None:
        return {
            parameter: f"noname.{place}.{number}"
            for place, group in enumerate(optimizer.param_groups)
            for number, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters must be pairs of names and parameters, as model.named_parameters() gives"
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named_parameters must have different names, but has {', '.join(twice)} twice")
    found = {parameter: name for name, parameter in pairs}
    missing = sum(parameter not in found for parameter in _parameters(optimizer))
    if missing:
        raise ValueError(f"named_parameters lacks {missing} parameters of the optimizer")
    return found


_Sent = tuple[Any, Any, Any]  # a parameter, what is sent for it, and what restores that


def _begin_with_zeros(parameter: Any) -> None:
    """Gives a parameter a gradient of zeros, which programs for Horovod read before the first backward pass."""
    zeros = parameter.grad = torch.zeros_like(parameter)

    def first(gradient: Any) -> None:
        if gradient.is_sparse and parameter.grad is zeros:
            parameter.grad = None  # a dense gradient would make the sum dense
        hook.remove()

    hook = parameter.register_hook(first)


class _Common(torch.optim.Optimizer):
    """What both kinds of distributed optimizers have."""

    def _begin(
        self, named: Any, compression: Any, passes: int, scale: dict[str, Any], sparse_as_dense: bool,
        parts: list[list[Any]], process_set: ProcessSet,
    ) -> None:  # fmt: skip
        self._parameter_names = _names(self, named)
        self._hvd_compression, self._hvd_parts, self._hvd_set = compression, parts, process_set
        self._hvd_passes, self._hvd_sparse_as_dense = passes, sparse_as_dense
        self._hvd_scale = scale

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes before each step."""
        self._hvd_passes = passes

    def __getstate__(self) -> Any:
        raise TypeError("a DistributedOptimizer cannot be copied or pickled; use its state_dict()")


class _Distributed(_Common):
    """The methods of a distributed optimizer. ``DistributedOptimizer`` adds them to the class of an optimizer."""

    def _begin(self, *settings: Any) -> None:
        super()._begin(*settings)
        self._hvd_came: dict[Any, int] = {}  # backward passes since the last exchange, by parameter
        self._hvd_left = [len(part) for part in self._hvd_parts]
        self._hvd_handles: dict[int, tuple[list[Request], list[_Sent]]] = {}  # by part
        self._hvd_synchronised, self._hvd_synchronises = False, True
        if not self._hvd_set.included():
            self._hvd_parts = []  # this rank steps with its own gradients
        for parameter in (one for part in self._hvd_parts for one in part if one.grad is None):
            _begin_with_zeros(parameter)
        self._hvd_hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number, part in enumerate(self._hvd_parts)
            for parameter in part
        ]

    def _hook(self, number: int) -> Any:
        def came(parameter: Any) -> None:
            count = self._hvd_came[parameter] = self._hvd_came.get(parameter, 0) + 1
            if count == self._hvd_passes:
                self._hvd_left[number] -= 1
                if not self._hvd_left[number]:
                    self._send(number)
            elif count > self._hvd_passes:
                raise AssertionError(
                    f"parameter {self._parameter_names[parameter]!r} got more than {self._hvd_passes} gradients before "
                    "step() or synchronize(): set backward_passes_per_step"
                )

        return came

    def _send(self, number: int) -> None:
        """Hands over the gradients of a part. Parameters without one send zeros: other ranks may have gradients."""
        sent: list[_Sent] = []
        handles = []
        for parameter in self._hvd_parts[number]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            if gradient.is_sparse and not self._hvd_sparse_as_dense:
                name, scale = self._parameter_names[parameter], self._hvd_scale
                handle = sparse_allreduce_async(gradient, name, scale["op"], self._hvd_set)
                handles.append(handle)
                sent.append((parameter, handle, None))
            else:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                sent.append((parameter, *self._hvd_compression.compress(dense)))
        tensors = [tensor for _, tensor, _ in sent if isinstance(tensor, torch.Tensor)]
        if tensors:
            name = self._parameter_names[self._hvd_parts[number][0]]
            scale = {**self._hvd_scale, "process_set": self._hvd_set}
            handles.append(grouped_allreduce_async_(tensors, name=name, **scale))
        self._hvd_handles[number] = handles, sent

    def synchronize(self) -> None:
        """Waits until the gradients are those of all ranks, for example to clip them.

        ``step()`` must then be called within :meth:`skip_synchronize`.

        Raises:
            HorovodInternalError: the ranks' gradients differ in shape or dtype, or the job cannot continue.
        """
        for number in range(len(self._hvd_parts)):
            if number not in self._hvd_handles:
                self._send(number)
        handles, self._hvd_handles = self._hvd_handles, {}
        self._hvd_came.clear()
        self._hvd_left = [len(part) for part in self._hvd_parts]
        for waits, sent in handles.values():
            for handle in waits:
                handle.wait()
            for parameter, tensor, context in sent:
                if isinstance(tensor, Request):
                    parameter.grad = tensor.wait()
                elif parameter.grad.is_sparse:
                    dense = self._hvd_compression.decompress(tensor, context)
                    parameter.grad = dense.to_sparse(parameter.grad.sparse_dim())
                elif tensor is not parameter.grad:
                    parameter.grad.copy_(self._hvd_compression.decompress(tensor, context))
        self._hvd_synchronised = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Returns a context in which ``step()`` does not wait for gradients, because :meth:`synchronize` has."""
        self._hvd_synchronises = False
        try:
            yield
        finally:
            self._hvd_synchronises = True

    def step(self, closure: Any = None) -> Any:
        """Waits for all ranks' gradients, and steps."""
        if self._hvd_synchronises:
            if self._hvd_synchronised:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): it exchanges the gradients again",
                    stacklevel=2,
                )
            self.synchronize()
        self._hvd_synchronised = False
        return super().step(closure)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Resets the gradients.

        Raises:
            AssertionError: gradients are being exchanged.
        """
        if self._hvd_handles:
            raise AssertionError(
                "zero_grad() was called between backward() and step() or synchronize(), while gradients are exchanged"
            )
        super().zero_grad(*args, **kwargs)


class _DistributedAdasum(_Common):
    """The methods of a distributed optimizer with op=Adasum."""

    def _begin(self, *settings: Any) -> None:
        super()._begin(*settings)
        if self._hvd_set is not global_process_set or job.size() & (job.size() - 1):
            raise ValueError("op=Adasum needs the global process set, of a power of two of ranks")

    def synchronize(self) -> None:
        """Does nothing: ``step()`` exchanges."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises an AssertionError: with op=Adasum, ``step()`` always exchanges."""
        raise AssertionError("skip_synchronize() cannot be used with op=Adasum")
        yield

    def step(self, closure: Any = None) -> Any:
        """Steps on this rank, and combines all ranks' changes of the parameters."""
        parameters = [parameter for part in self._hvd_parts for parameter in part]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            changes = [parameter - old for parameter, old in zip(parameters, before, strict=True)]
            sent = [self._hvd_compression.compress(change) for change in changes]
            grouped_allreduce_([tensor for tensor, _ in sent], name="adasum", op=Op.Adasum)
            for parameter, old, (tensor, context) in zip(parameters, before, sent, strict=True):
                parameter.copy_(old + self._hvd_compression.decompress(tensor, context))
        return loss
