"""Gradients in fewer bytes: communication hooks for :class:`ringreduce.DataParallel` and torch's DDP.

    from ringreduce import compression
    model.register_comm_hook(compression.TopK(fraction=0.01), compression.hook)

One function, :func:`hook`, and a state for each method; docs/training.md compares what they send. Every rank makes the
state with the same arguments at the same point of the program: its ranks form a group of their own.
"""

from __future__ import annotations

from ringreduce.compression.base import Compression, hook
from ringreduce.compression.narrow import HalfPrecision, Int8Blocks
from ringreduce.compression.power_sgd import PowerSGD
from ringreduce.compression.sign_majority import SignMajority
from ringreduce.compression.top_k import TopK

__all__ = ["Compression", "HalfPrecision", "Int8Blocks", "PowerSGD", "SignMajority", "TopK", "hook"]
