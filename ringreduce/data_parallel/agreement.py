"""Whether all ranks have the same model, and what they tell each other if they do not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from ringreduce.blobs import gather_bytes
from ringreduce.communicator import Communicator
from ringreduce.errors import Error

__all__ = ["check_not_averaged", "check_parameters", "check_same", "describe", "gather_texts"]


def gather_texts(comm: Communicator, text: str) -> list[str]:
    """Every rank's text."""
    return [blob.decode() for blob in gather_bytes(comm, text.encode())]


def check_parameters(module: Any) -> list[tuple[str, Any]]:
    """Names and parameters that need gradients; ValueError where there are none, or one has no values."""
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter '{name}' has no shape yet: call the module once before")
        if parameter.is_meta:
            raise ValueError(f"parameter '{name}' is on the meta device, and has no values")
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError("module has no parameter that needs a gradient")
    check_not_averaged(named)
    return named


def check_not_averaged(named: Iterable[tuple[str, Any]]) -> None:
    """ValueError where gradients are averaged already: by a wrapper of the model, or by its optimizer."""
    for name, parameter in named:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            owner = getattr(getattr(hook, "func", None), "__self__", None)
            averaged_by = getattr(owner, "averaged_by", None)
            if averaged_by:
                raise ValueError(
                    f"the gradients of parameter {name} are averaged by {averaged_by} already. Use either a "
                    "DataParallel wrapper or a ShardedOptimizer of stage 2, or both with stage=1"
                )


def describe(module: Any, settings: dict[str, Any]) -> dict[str, str]:
    """What has to be the same on all ranks, by what it is called; in the model's order."""
    found = {name: repr(value) for name, value in settings.items()}
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else ", requires_grad=False"
        found[f"parameter '{name}'"] = f"{_kind(parameter)}{frozen}"
    for name, buffer in module.named_buffers():
        found[f"buffer '{name}'"] = _kind(buffer)
    return found


def _kind(tensor: Any) -> str:
    if torch.nn.parameter.is_lazy(tensor):
        return "no shape yet"
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{dtype}{list(tensor.shape)}{strides}"


def check_same(
    comm: Communicator, own: dict[str, str], what: str = "DataParallel: the ranks' models"
) -> None:
    """Compares descriptions, of what is called what, of all ranks.

    Raises:
        Error: on every rank: the first thing that differs, and which ranks have what.
    """
    texts = gather_texts(comm, json.dumps(list(own.items())))
    if len(set(texts)) == 1:
        return
    lists = [json.loads(text) for text in texts]
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
    raise Error(f"{what} differ, first in this: {whose}")


def _at(entries: list[list[str]], place: int) -> str:
    return ": ".join(entries[place]) if place < len(entries) else "nothing more"
