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
import sys
from typing import TYPE_CHECKING, Any

from ringreduce.doors import DOORS  # which finds the modules of the short names

if TYPE_CHECKING:
    from ringreduce.communicator import Communicator
    from ringreduce.communicator.arrays.arrays import empty, zeros
    from ringreduce.communicator.choice import Choice
    from ringreduce.communicator.links import Links
    from ringreduce.communicator.ops import op
    from ringreduce.communicator.work import Work
    from ringreduce.communicator.world import (
        all_gather,
        all_gather_object,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        broadcast_object,
        explain,
        exscan,
        finalize,
        gather,
        gather_object,
        is_initialized,
        recv,
        reduce,
        reduce_scatter,
        scan,
        scatter,
        scatter_object,
        send,
        world,
    )
    from ringreduce.diagnosis.timeline import Timeline
    from ringreduce.errors import (
        ClosedError,
        DamagedError,
        Error,
        MinorityError,
        MismatchError,
        OpFailed,
        PeerLost,
        RankFailed,
        TimeoutError,
    )
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
    from ringreduce.start.local import local_group
    from ringreduce.start.run import run
    from ringreduce.start.world_starts import init, join
    from ringreduce.training.data_parallel import DataParallel as DataParallel
    from ringreduce.training.data_parallel.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from ringreduce.training.data_parallel.sync_batch_norm import (
        convert_sync_batchnorm as convert_sync_batchnorm,
    )
    from ringreduce.training.parameter_server import ParameterServer as ParameterServer
    from ringreduce.training.sharded_optimizer import ShardedOptimizer as ShardedOptimizer

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
    "OpFailed",
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
    "exscan",
    "finalize",
    "gather",
    "gather_object",
    "init",
    "is_initialized",
    "join",
    "local_group",
    "op",
    "recv",
    "reduce",
    "reduce_scatter",
    "register",
    "run",
    "scan",
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
    "communicator": "Communicator",
    "communicator.arrays.arrays": "empty zeros",
    "communicator.choice": "Choice",
    "communicator.links": "Links",
    "communicator.ops": "op",
    "communicator.work": "Work",
    "communicator.world": "all_gather all_gather_object all_reduce all_to_all barrier broadcast broadcast_object "
    "explain exscan finalize gather gather_object is_initialized recv reduce reduce_scatter scan scatter "
    "scatter_object send world",
    "diagnosis.timeline": "Timeline",
    "errors": "ClosedError DamagedError Error MinorityError MismatchError OpFailed PeerLost RankFailed "
    "TimeoutError",
    "schedules": "Local Recv Round Schedule ScheduleError Send algorithms check register schedule",
    "start.local": "local_group",
    "start.run": "run",
    "start.world_starts": "init join",
    "training.data_parallel": "DataParallel",
    "training.data_parallel.sync_batch_norm": "SyncBatchNorm convert_sync_batchnorm",
    "training.parameter_server": "ParameterServer",
    "training.sharded_optimizer": "ShardedOptimizer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"ringreduce.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    behind = sys.modules.get(f"ringreduce.{DOORS.get(name)}")  # a pickle imports modules by their own names
    if behind is not None:
        return behind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
