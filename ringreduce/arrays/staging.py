"""Messages from and to a GPU's memory, which go through the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringreduce import _engine
from ringreduce.annotations import Array
from ringreduce.arrays import arrays
from ringreduce.arrays.streams import Stream

__all__ = ["give", "taken", "twin"]


def twin(x: Array) -> Any:
    """x, or if it is in a GPU's memory an array of its shape and dtype in the CPU's.

    Raises:
        ValueError: it is known by DLPack alone, and so it is not known how to make such an array.
    """
    if isinstance(x, np.ndarray):  # small messages are sent in microseconds
        return x
    if arrays.is_tensor(x):
        return x.new_empty(x.shape, device="cpu") if x.is_cuda else x
    if hasattr(x, "__cuda_array_interface__"):
        interface = x.__cuda_array_interface__
        return np.empty(interface["shape"], interface["typestr"])
    if arrays.is_on_gpu_by_dlpack(x):
        raise ValueError(
            "x is in a GPU's memory and speaks DLPack alone: collectives take it, messages do not"
        )
    return x


def taken(x: Array, comm: _engine.Communicator, stream: Stream) -> Any:
    """x, or if it is in a GPU's memory its values, as they are when the stream has come so far."""
    host = twin(x)
    if host is not x:
        comm.copy_between(host, x, stream)
    return host


def give(host: Array, x: Array, comm: _engine.Communicator, stream: Stream) -> None:
    """Copies what twin(x) has become to x, in the stream's order; returns when it is there."""
    comm.copy_between(x, host, stream)
