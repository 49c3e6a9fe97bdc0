"""Collective communication you can read, measure and drop in.

>>> import numpy as np, ringreduce
>>> def average(comm):
...     x = np.full(4, comm.rank, dtype="float32")
...     return comm.all_reduce(x, "avg").tolist()
>>> ringreduce.run(average, 2)
[[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]

Under torchrun, mpirun or srun, call ``comm = ringreduce.init()``. The collectives are then also functions of this
module, which call the communicator of all ranks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringreduce.arrays.arrays import empty, zeros
    from ringreduce.communicator import Communicator
    from ringreduce.communicator.choice import Choice
    from ringreduce.communicator.links import Links
    from ringreduce.communicator.on_world import (
        all_gather,
        all_gather_object,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        broadcast_object,
        explain,
        finalize,
        gather,
        gather_object,
        init,
        is_initialized,
        join,
        recv,
        reduce,
        reduce_scatter,
        scatter,
        scatter_object,
        send,
        world,
    )
    from ringreduce.communicator.work import Work
    from ringreduce.data_parallel import DataParallel as DataParallel
    from ringreduce.data_parallel.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from ringreduce.data_parallel.sync_batch_norm import convert_sync_batchnorm as convert_sync_batchnorm
    from ringreduce.errors import (
        ClosedError,
        DamagedError,
        Error,
        MinorityError,
        MismatchError,
        PeerLost,
        RankFailed,
        TimeoutError,
    )
    from ringreduce.parameter_server import ParameterServer as ParameterServer
    from ringreduce.schedules import (
        Local,
        Recv,
        Round,
        Schedule,
        ScheduleError,
        Send,
        algorithms,
        check,
        register,
        schedule,
    )
    from ringreduce.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from ringreduce.start.launch import run
    from ringreduce.start.local import local_group
    from ringreduce.timeline import Timeline

__version__ = "0.1.0"

# Without the names that need torch: ``from ringreduce import *`` must work without it.
__all__ = [
    "Choice",
    "ClosedError",
    "Communicator",
    "DamagedError",
    "Error",
    "Links",
    "Local",
    "MinorityError",
    "MismatchError",
    "PeerLost",
    "RankFailed",
    "Recv",
    "Round",
    "Schedule",
    "ScheduleError",
    "Send",
    "Timeline",
    "TimeoutError",
    "Work",
    "algorithms",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "check",
    "empty",
    "explain",
    "finalize",
    "gather",
    "gather_object",
    "init",
    "is_initialized",
    "join",
    "local_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "register",
    "run",
    "scatter",
    "scatter_object",
    "schedule",
    "send",
    "world",
    "zeros",
]

# The modules of the public names. Each module is imported on first use: torch imports this package, if it is installed,
# to find its backend, and must not pay for the rest.
_HOMES = {
    "arrays.arrays": "empty zeros",
    "communicator": "Communicator",
    "communicator.choice": "Choice",
    "communicator.links": "Links",
    "communicator.on_world": "all_gather all_gather_object all_reduce all_to_all barrier broadcast broadcast_object "
    "explain finalize gather gather_object init is_initialized join recv reduce reduce_scatter scatter scatter_object "
    "send world",
    "communicator.work": "Work",
    "data_parallel": "DataParallel",
    "data_parallel.sync_batch_norm": "SyncBatchNorm convert_sync_batchnorm",
    "errors": "ClosedError DamagedError Error MinorityError MismatchError PeerLost RankFailed TimeoutError",
    "parameter_server": "ParameterServer",
    "schedules": "Local Recv Round Schedule ScheduleError Send algorithms check register schedule",
    "sharded_optimizer": "ShardedOptimizer",
    "start.launch": "run",
    "start.local": "local_group",
    "timeline": "Timeline",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"ringreduce.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
