"""The class that Ray makes a group of, and its registration."""

from __future__ import annotations

import sys
from typing import Any

from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective import is_backend_available
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from ringreduce.annotations import Array, Op
from ringreduce.communicator import DEFAULT_TIMEOUT
from ringreduce.errors import TimeoutError
from ringreduce.frameworks.ray.store import RayStore
from ringreduce.start.bootstrap import init

__all__ = ["RingreduceGroup", "register"]

_OPS: dict[Any, Op] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}


def register(timeout: float = DEFAULT_TIMEOUT) -> None:
    """Makes "ringreduce" a backend of ``ray.util.collective`` in this process. Calling it again sets the timeout.

    Args:
        timeout: seconds after which joining a group, and later every wait in it, gives up.
    """
    RingreduceGroup.timeout = timeout
    if not is_backend_available("ringreduce"):
        register_collective_backend("ringreduce", RingreduceGroup)


class RingreduceGroup(BaseGroup):  # type: ignore[misc]
    """The group that Ray creates for ``init_collective_group(..., backend="ringreduce")``. ``comm`` is its
    communicator.

    The methods are those that the functions of ``ray.util.collective`` call. Tensors are NumPy arrays or torch tensors
    in CPU memory, of the dtypes that :class:`ringreduce.Communicator` lists. Inputs are not changed, except those that
    are also the output.
    """

    timeout = DEFAULT_TIMEOUT

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        try:
            self.comm = init(rank, world_size, RayStore(group_name), timeout=self.timeout)
        except TimeoutError as error:
            text = f"the group {group_name!r} could not be made within {self.timeout:g} s: {error}"
            raise TimeoutError(text, error.rank) from error

    @classmethod
    def backend(cls) -> str:
        return "RINGREDUCE"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self.comm.close()

    def barrier(self, barrier_options: Any = None) -> None:
        self.comm.barrier()

    def allreduce(self, tensor: list[Array], allreduce_options: Any = None) -> None:
        self.comm.all_reduce(_single(tensor), _op(allreduce_options))

    def reduce(self, tensor: list[Array], reduce_options: Any = None) -> None:
        root = 0 if reduce_options is None else reduce_options.root_rank
        self.comm.reduce(_single(tensor), root, _op(reduce_options))

    def broadcast(self, tensor: list[Array], broadcast_options: Any = None) -> None:
        self.comm.broadcast(_single(tensor), 0 if broadcast_options is None else broadcast_options.root_rank)

    def allgather(
        self, tensor_list: list[list[Array]], tensor: list[Array], allgather_options: Any = None
    ) -> None:
        x: Any = _single(tensor)
        outputs: list[Any] = _alike(_single(tensor_list), x)
        gathered = self.comm.all_gather(x.reshape(-1))
        for number, output in enumerate(outputs):
            output[...] = gathered[number * _elements(x) : (number + 1) * _elements(x)].reshape(output.shape)

    def reducescatter(
        self, tensor: list[Array], tensor_list: list[list[Array]], reducescatter_options: Any = None
    ) -> None:
        out: Any = _single(tensor)
        parts = [part.reshape(-1) for part in _alike(_single(tensor_list), out)]
        self.comm.reduce_scatter(_joined(parts), _op(reducescatter_options), out=out)

    def send(self, tensor: list[Array], send_options: Any) -> None:
        self.comm.send(_single(tensor), send_options.dst_rank)

    def recv(self, tensor: list[Array], recv_options: Any) -> None:
        self.comm.recv(_single(tensor), recv_options.src_rank)


def _op(options: Any) -> Op:
    return "sum" if options is None else _OPS[options.reduceOp]


def _single(tensors: list[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"a rank of ringreduce has one tensor in a call, not {len(tensors)}")
    return tensors[0]


def _elements(x: Any) -> int:
    return int(x.numel() if hasattr(x, "numel") else x.size)


def _alike(tensor_list: list[Any], x: Any) -> list[Any]:
    """Returns the list. Raises TypeError or ValueError if a member is not a tensor like x."""
    for number, one in enumerate(tensor_list):
        if type(one) is not type(x) or one.dtype != x.dtype:
            raise TypeError(
                f"tensor_list[{number}] is a {type(one).__name__} of {one.dtype}, but tensor is a {type(x).__name__} "
                f"of {x.dtype}"
            )
        if one.shape != x.shape:
            raise ValueError(
                f"tensor_list[{number}] has the shape {tuple(one.shape)}, but tensor has {tuple(x.shape)}"
            )
    return tensor_list


def _joined(parts: list[Any]) -> Any:
    if type(parts[0]).__module__ == "numpy":
        import numpy as np

        return np.concatenate(parts)
    return sys.modules["torch"].cat(parts)
