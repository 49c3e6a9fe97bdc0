"""What methods remember of every element of the gradient from one step to the next: errors, momenta."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.compression.bucket import Bucket

__all__ = ["Memory"]

Tensor = Any  # torch.Tensor


class Memory:
    """A float32 for each element of the gradient, zero at first.

    Methods see it as one flat tensor per bucket, but it belongs to the parameters: after the first step both wrappers
    put parameters into other buckets, in the order in which their gradients come.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Tensor] = {}  # by parameter; views of these once a bucket has been seen:
        self._flats: dict[tuple[int, ...], Tensor] = {}

    def flat(self, bucket: Bucket) -> Tensor:
        """The bucket's part, to be read and written."""
        flat = self._flats.get(bucket.parameters)
        return self._moved_to(bucket) if flat is None else flat

    def add(self, parameters: tuple[int, ...], start: int, values: Tensor) -> None:
        """Adds values to what is from start on in a bucket of these parameters, which need not be one any more."""
        parts = [self._parts[parameter] for parameter in parameters]
        whole = torch.zeros(sum(len(part) for part in parts))
        into = whole[start : start + len(values)]
        into.copy_(values[: len(into)])
        for part, more in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
            part += more

    def _moved_to(self, bucket: Bucket) -> Tensor:
        flat = torch.cat(
            [self._part(*each, bucket.flat) for each in zip(bucket.parameters, bucket.lengths, strict=True)]
        )
        self._parts.update(zip(bucket.parameters, torch.split(flat, list(bucket.lengths)), strict=True))
        moved = set(bucket.parameters)
        self._flats = {key: old for key, old in self._flats.items() if moved.isdisjoint(key)}
        self._flats[bucket.parameters] = flat
        return flat

    def _part(self, parameter: int, length: int, like: Tensor) -> Tensor:
        part = self._parts.get(parameter)
        if part is None:
            return torch.zeros(length, dtype=torch.float32, device=like.device)
        if part.numel() != length:
            raise ValueError(
                f"the state is of another model: parameter {parameter} has {length} elements, "
                f"and {part.numel()} in what was loaded"
            )
        return part.to(like.device)

    def state_dict(self) -> dict[int, Tensor]:
        return {parameter: part.clone() for parameter, part in self._parts.items()}

    def load_state_dict(self, saved: dict[int, Tensor]) -> None:
        self._parts = {parameter: part.clone() for parameter, part in saved.items()}
        self._flats = {}
