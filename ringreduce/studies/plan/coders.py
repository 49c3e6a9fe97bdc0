"""Measures how long this machine takes to compress gradients, with the code that training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from ringreduce import _engine
from ringreduce.errors import Error
from ringreduce.start.local import local_group
from ringreduce.studies.plan.job import Coder
from ringreduce.studies.plan.overheads import clock_of
from ringreduce.training import compression

__all__ = ["measured_coders"]

ROUNDS, CPU = 5, torch.device("cpu")
WIRES = ("bf16", "fp16", "int8", "fp8")
LARGE, SMALL = [(1024, 1024)], [(64, 64)] * 16  # shapes of gradients: one large, and many small ones
BUCKETS = 8  # in turn: by its next turn, a bucket has left the cache, as in training


class _Bucket:
    """A bucket as torch's DDP passes it to a hook."""

    def __init__(self, shapes: Sequence[tuple[int, int]], device: Any) -> None:
        sizes = [rows * columns for rows, columns in shapes]
        self._flat = torch.randn(sum(sizes), device=device)
        self._parts = [
            part.view(shape) for part, shape in zip(torch.split(self._flat, sizes), shapes, strict=True)
        ]

    def buffer(self) -> Any:
        return self._flat

    def gradients(self) -> list[Any]:
        return self._parts

    def parameters(self) -> list[Any]:
        return self._parts

    def is_last(self) -> bool:
        return True


def measured_coders(device: Any) -> dict[str, Coder]:
    """Returns the time of each method, measured on one rank in about half a second.

    On a GPU that the library has no collectives for, methods that need them are left out.
    """
    found = {wire: Coder(element_s=_of_wire(wire)) for wire in WIRES}
    with local_group(1)[0] as alone:
        for name, method in (
            ("power_sgd", compression.PowerSGD),
            ("top_k", compression.TopK),
            ("sign_majority", compression.SignMajority),
        ):
            try:
                times = [_of_method(method, alone, shapes, device) for shapes in (LARGE, SMALL)]
            except Error:
                continue  # collectives of this device's tensors are missing here
            received = _of_addition(device) if name == "top_k" else 0.0
            found[name] = _fitted(times, received)
    return found


def _fitted(times: Sequence[float], received: float) -> Coder:
    elements = [sum(rows * columns for rows, columns in shapes) for shapes in (LARGE, SMALL)]
    rows = np.array([[elements[0], len(LARGE)], [elements[1], len(SMALL)]])
    element_s, tensor_s = np.maximum(np.linalg.solve(rows, np.array(times)), 0)
    return Coder(element_s=element_s, tensor_s=tensor_s, received_s=received)


def _of_method(method: Any, alone: Any, shapes: Sequence[tuple[int, int]], device: Any) -> float:
    state, buckets = method(alone), [_Bucket(shapes, device) for _ in range(BUCKETS)]

    def once() -> None:
        for bucket in buckets:
            state.submit(bucket).wait()

    seconds = _median(once, device)
    state.close()
    return seconds / BUCKETS


def _of_wire(wire: str) -> float:
    """Returns the seconds for an element: it is encoded once, and decoded in sums and in results."""
    values = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    coded = np.empty(_engine.reduce.encoded_bytes(wire, values.size), np.uint8)
    out = np.empty_like(values)
    encode = _median(lambda: _engine.reduce.encode(wire, coded, values.view(np.uint8)))
    decode = _median(lambda: _engine.reduce.decode(wire, out.view(np.uint8), coded))
    return (encode + 2 * decode) / values.size


def _of_addition(device: Any) -> float:
    """Returns the seconds to add an element at its place."""
    target, count = torch.zeros(1 << 20, device=device), 1 << 14
    places = torch.randint(len(target), (count,), device=device)
    return _median(lambda: target.index_add_(0, places, target[:count].clone()), device) / count


def _median(call: Callable[[], Any], device: Any = CPU) -> float:
    times, clock = [], clock_of(device)
    for _ in range(ROUNDS):
        began = clock()
        call()
        times.append(clock() - began)
    return median(times[1:])
