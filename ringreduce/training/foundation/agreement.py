"""Agreement between ranks: whether they have the same model, and how a backward pass ended."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ringreduce._engine import values
from ringreduce.communicator import Communicator
from ringreduce.communicator.arrays import arrays
from ringreduce.errors import Error
from ringreduce.training.foundation.rows import sparse_names

__all__ = [
    "Verdict",
    "check_not_averaged",
    "check_parameters",
    "check_same",
    "describe",
    "kind_of",
    "some_names",
]

SHOWN = 10  # names in a message


def check_parameters(module: Any) -> list[tuple[str, Any]]:
    """Returns the parameters that need gradients, with names.

    Raises:
        ValueError: there are none, or a parameter has no values, or none of its own for each element.
    """
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter '{name}' has no shape yet: call the module once first")
        if parameter.is_meta:
            raise ValueError(f"parameter '{name}' is on the meta device and has no values")
        arrays.check_writable(parameter, f"parameter '{name}'")
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError("module has no parameter that needs a gradient")
    check_not_averaged(named)
    return named


def check_not_averaged(named: Iterable[tuple[str, Any]]) -> None:
    """Raises ValueError if a wrapper of the model, or its optimizer, averages the gradients already."""
    for name, parameter in named:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            owner = getattr(getattr(hook, "func", None), "__self__", None)
            averaged_by = getattr(owner, "averaged_by", None)
            if averaged_by:
                raise ValueError(
                    f"{averaged_by} already averages the gradients of parameter {name}. Use either a DataParallel "
                    "wrapper or a ShardedOptimizer with stage=2, or both with stage=1"
                )


def describe(module: Any, settings: dict[str, Any]) -> dict[str, str]:
    """Returns what must be the same on all ranks, by name, in the model's order."""
    found, sparse = {name: repr(value) for name, value in settings.items()}, sparse_names(module)
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else ", requires_grad=False"
        rows = ", sparse=True" if name in sparse else ""
        found[f"parameter '{name}'"] = f"{kind_of(parameter)}{frozen}{rows}"
    for name, buffer in module.named_buffers():
        found[f"buffer '{name}'"] = kind_of(buffer)
    return found


def kind_of(tensor: Any) -> str:
    """Returns dtype, shape and strides as text."""
    if torch.nn.parameter.is_lazy(tensor):
        return "no shape yet"
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{dtype}{list(tensor.shape)}{strides}"


def check_number(value: Any, argument: str) -> None:
    """Raises TypeError if an argument is not a number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, not {type(value).__name__}")


def check_module(value: Any, argument: str) -> None:
    """Raises TypeError if an argument is not a module."""
    if not isinstance(value, torch.nn.Module):
        raise TypeError(f"{argument} must be a torch.nn.Module, not {type(value).__name__}")


def check_whole(value: Any, argument: str, least: int) -> None:
    """Raises TypeError or ValueError if an argument is not an integer of at least so much."""
    values.whole(value, argument, -(2**62))
    if value < least:
        raise ValueError(f"{argument} must be at least {least}, not {value}")


def check_positive(value: Any, argument: str) -> None:
    """Raises TypeError or ValueError if an argument is not a positive number."""
    check_number(value, argument)
    if not value > 0:
        raise ValueError(f"{argument} must be positive, not {value}")


def check_same(comm: Communicator, own: dict[str, str], what: str) -> None:
    """Compares the descriptions of all ranks.

    Args:
        own: this rank's description, by name.
        what: the subject of the error message.

    Raises:
        Error: the descriptions differ. Every rank raises it; the message names the first difference and its ranks.
    """
    lists = comm.all_gather_object(list(own.items()))
    if all(entries == lists[0] for entries in lists):
        return
    place = 0
    while len({_at(entries, place) for entries in lists}) == 1:
        place += 1
    ranks: dict[str, list[str]] = {}
    for rank, entries in enumerate(lists):
        ranks.setdefault(_at(entries, place), []).append(str(rank))
    whose = "; ".join(
        f"rank{'s' if len(having) > 1 else ''} {', '.join(having)}: {entry}"
        for entry, having in ranks.items()
    )
    raise Error(f"{what} differ. The first difference: {whose}")


def _at(entries: list[tuple[str, str]], place: int) -> str:
    return ": ".join(entries[place]) if place < len(entries) else "nothing more"


class Verdict:
    """An exchange of three bytes, and one more for each parameter if ranks need to know which were used.

    Args:
        problem: the failure of this rank, or "".
        restarts: how often this rank has restarted since the last verdict. It shows if a rank failed too early to join
            a backward pass, and is one pass behind.
        used: for each parameter, whether this rank has a gradient. None on all ranks if they need not know.
    """

    FIXED = 3  # bytes: whether there is a problem; restarts from 0 up, and from 255 down

    def __init__(self, comm: Communicator, problem: str, restarts: int, used: Sequence[bool] | None) -> None:
        self._comm = comm
        self._problem = problem
        self._restarts = restarts
        number = restarts % 256
        self._flags = np.array([problem != "", number, 255 - number, *(used or ())], np.uint8)
        self._work = comm.all_reduce(self._flags, "max", async_op=True)

    def wait(self) -> None:
        self._work.wait()

    @property
    def used_by_any(self) -> set[int]:
        """The positions, in ``used``, of parameters for which some rank has a gradient."""
        return set(np.flatnonzero(self._flags[self.FIXED :]).tolist())

    def problems(self) -> str:
        """Returns the failures of all ranks, or "". Every rank must call it, and gets the same text."""
        failed, most, least = self._flags[: self.FIXED].tolist()
        if most + least != 255:
            calls = self._comm.all_gather_object(f"{self._restarts} on rank {self._comm.rank}")
            return (
                "a rank's backward pass failed before its first gradient, and the next one was taken for it. Calls of "
                f"zero_grad() since the last exchange: {', '.join(calls)}"
            )
        if not failed:
            return ""
        texts = self._comm.all_gather_object(self._problem)
        return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)


def some_names(names: Sequence[str]) -> str:
    """Returns the first few names, and the number of the others, for a message."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
