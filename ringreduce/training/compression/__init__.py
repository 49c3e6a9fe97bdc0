"""Gradients in fewer bytes: communication hooks for :class:`ringreduce.DataParallel` and torch's DDP.

    from ringreduce.training import compression
    model.register_comm_hook(compression.TopK(fraction=0.01), compression.hook)

All methods share one function, :func:`hook`; each has its own class of states. docs/training.md compares what they
send. Every rank must create the state with the same arguments at the same point of the program, because its ranks form
a new group.
"""

from __future__ import annotations

from ringreduce.training.compression.method import Compression, hook
from ringreduce.training.compression.narrow import HalfPrecision, Int8Blocks
from ringreduce.training.compression.power_sgd import PowerSGD
from ringreduce.training.compression.sign_majority import SignMajority
from ringreduce.training.compression.top_k import TopK

__all__ = ["Compression", "HalfPrecision", "Int8Blocks", "PowerSGD", "SignMajority", "TopK", "hook"]
