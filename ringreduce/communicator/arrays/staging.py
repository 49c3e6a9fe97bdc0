"""Staging copies in CPU memory, for messages from and to GPU memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringreduce import _engine
from ringreduce.annotations import Array, Stream
from ringreduce.communicator.arrays import arrays

__all__ = ["give", "taken", "twin"]


def twin(x: Array, writable: bool = False) -> Any:
    """Returns x if it is in CPU memory, else a new array in CPU memory with its shape and dtype.

    Raises:
        ValueError: x is in GPU memory and only supports DLPack, so the array cannot be made.
    """
    if isinstance(x, np.ndarray):  # first, because a small message takes only microseconds
        return x
    if arrays.is_tensor(x):
        return x.new_empty(x.shape, device="cpu") if x.is_cuda else x
    if hasattr(x, "__cuda_array_interface__"):
        return np.empty(_engine.shape_of(x, "x", writable), x.__cuda_array_interface__["typestr"])
    if arrays.is_on_gpu_by_dlpack(x):
        raise ValueError(
            "x is in GPU memory and supports only DLPack: collectives take it, but send and recv do not"
        )
    return x


def taken(x: Array, comm: _engine.Communicator, stream: Stream) -> Any:
    """Returns x, or a copy in CPU memory of its values once the stream's earlier work is done."""
    host = twin(x)
    if host is not x:
        comm.copy_between(host, x, stream)
    return host


def give(host: Array, x: Array, comm: _engine.Communicator, stream: Stream) -> None:
    """Copies host, made by twin(x), to x in the stream's order. Returns when the copy is done."""
    comm.copy_between(x, host, stream)
