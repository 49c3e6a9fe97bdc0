"""A user's program, which mypy reads: what it finds on a line is in the comment behind it. Nothing runs it."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import reveal_type

import ringreduce
from ringreduce import Communicator, Work
from ringreduce.annotations import Array, Op, Transport, Wire

Floats = NDArray[np.float32]


def results(comm: Communicator, x: Floats, t: torch.Tensor) -> None:
    reveal_type(comm.all_reduce(t))  # Tensor
    reveal_type(comm.all_reduce(x, "avg", out=x, factor=0.5, algorithm="ring", timeout=3))  # ndarray
    reveal_type(comm.reduce_scatter(t, counts=[1, 2], wire="bf16"))  # Tensor
    reveal_type(comm.all_gather(x, counts=[1, 2]))  # ndarray
    reveal_type(comm.broadcast(t, 1))  # Tensor
    reveal_type(comm.reduce(t, 1, "max"))  # Tensor | None
    reveal_type(comm.gather(x))  # ndarray | None
    reveal_type(comm.scatter(out=t))  # Tensor
    reveal_type(comm.all_to_all(x, send_counts=[1, 2], recv_counts=[2, 1]))  # ndarray
    reveal_type(comm.scan(x, "max", out=x))  # ndarray
    reveal_type(comm.exscan(t, ringreduce.op(np.add, commutative=True)))  # Tensor
    reveal_type(comm.barrier())  # None
    reveal_type(comm.send(t, 1, tag=7))  # None
    reveal_type(comm.recv(t, 1))  # Tensor
    reveal_type(comm.recv(t, tag=7))  # tuple[Tensor, int]


def work(comm: Communicator, x: Floats, t: torch.Tensor) -> None:
    reveal_type(comm.all_reduce(x, async_op=True))  # Work[ndarray]
    reveal_type(comm.all_gather(t, async_op=True).wait())  # Tensor
    reveal_type(comm.reduce(t, async_op=True).wait())  # Tensor | None
    reveal_type(comm.scan(t, async_op=True))  # Work[Tensor]
    reveal_type(comm.barrier(async_op=True))  # Work[None]
    reveal_type(comm.send(t, 1, async_op=True))  # Work[None]
    reveal_type(comm.recv(t, 1, async_op=True).wait())  # Tensor
    reveal_type(comm.recv(t, async_op=True).wait())  # tuple[Tensor, int]


def functions(x: Floats, t: torch.Tensor) -> None:
    reveal_type(ringreduce.init().rank)  # int
    reveal_type(ringreduce.all_reduce(x, "max", wire="int8"))  # ndarray
    reveal_type(ringreduce.all_to_all(t, async_op=True))  # Work[Tensor]
    reveal_type(ringreduce.recv(x))  # tuple[ndarray, int]
    reveal_type(ringreduce.explain(8, "broadcast", wire="fp8"))  # Choice
    reveal_type(ringreduce.all_gather_object("text"))  # list[str]
    reveal_type(ringreduce.gather_object(3))  # list[int] | None
    reveal_type(ringreduce.empty(3, torch.float32))  # Tensor
    reveal_type(ringreduce.zeros((3, 4), np.float16))  # ndarray
    reveal_type(ringreduce.is_initialized())  # bool


def whatever(comm: Communicator, x: Floats, later: bool, op: Op, wire: Wire | None, how: Transport) -> Work:
    """What is known only when it runs."""
    comm.all_reduce(array.array("f", [1]), op, wire=wire)
    comm.all_reduce(memoryview(bytearray(8)), out=x)
    ringreduce.init(transport=how)
    either: Work | Floats = comm.all_reduce(x, async_op=later)
    return either if isinstance(either, Work) else comm.all_reduce(x, async_op=True)


def taken(x: Array) -> Any:
    return ringreduce.all_reduce(x)


def mistakes(comm: Communicator, x: Floats, text: str) -> None:
    comm.all_reduce([1.0, 2.0])  # error: call-overload
    comm.all_reduce("text")  # error: call-overload
    comm.all_reduce(x, "add")  # error: call-overload
    comm.all_reduce(x, wire="int4")  # error: call-overload
    comm.all_reduce(x, wires="int8")  # error: call-overload
    comm.broadcast(x, counts=[1, 2])  # error: call-overload
    comm.all_reduce(x, async_op=True).tolist()  # error: attr-defined
    comm.barrier(async_op=True).source.bit_length()  # error: union-attr
    ringreduce.all_reduce(x, text)  # error: call-overload
    ringreduce.explain(8, wires="bf16")  # error: call-arg
    ringreduce.init(transport="udp")  # error: arg-type
