"""Horovod's operations on torch tensors.

Every operation has the variants that Horovod documents: ``x`` waits and returns the result; ``x_async`` returns a
handle for :func:`poll` and :func:`synchronize`; ``x_`` and ``x_async_`` write the result to the tensor; ``grouped_x``
takes a list of tensors, which are negotiated as one. Results of ``x`` and ``grouped_x`` are differentiable.

Common arguments:

- ``tensor``: a dense tensor in CPU memory, of any dtype that :class:`ringreduce.Communicator` supports and any strides.
- ``name``: which calls of the ranks belong together. Ranks may submit names in any order. Calls without a name belong
  together in the order in which each rank makes them, for each function and process set.
- ``op``: Average (the default), Sum, Min, Max, Product or Adasum. ``average`` is its older form: True or False.
- ``prescale_factor``, ``postscale_factor``: what values are multiplied by, before and after the reduction.
- ``process_set``: the ranks that take part.

They raise ValueError or TypeError at once for invalid arguments. HorovodInternalError says that the ranks' calls of a
name differ, or that a rank is lost.
"""

from __future__ import annotations

from typing import Any

from ringreduce.frameworks.horovod.request import Request
from ringreduce.frameworks.horovod.torch import moving, reducing
from ringreduce.frameworks.horovod.torch.moving import *  # noqa: F403
from ringreduce.frameworks.horovod.torch.reducing import *  # noqa: F403

__all__ = ["poll", "synchronize"]
__all__ += moving.__all__
__all__ += reducing.__all__


def poll(handle: Request) -> bool:
    """Returns whether an operation is done, so that :func:`synchronize` returns at once."""
    return handle.done


def synchronize(handle: Request) -> Any:
    """Waits for an operation.

    Returns:
        A tensor; for grouped operations a list, for :func:`alltoall_async` the tensor and the received splits.

    Raises:
        HorovodInternalError: the ranks' calls differ, or the job cannot continue.
    """
    return handle.wait()
