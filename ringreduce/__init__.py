"""Collective communication you can read, measure and drop in.

>>> import numpy as np, ringreduce
>>> def average(comm):
...     x = np.full(4, comm.rank, dtype="float32")
...     return comm.all_reduce(x, "avg").tolist()
>>> ringreduce.run(average, 2)
[[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]

Under torchrun, mpirun or srun, ``comm = ringreduce.init()``; the collectives are then also functions of this
module, on the communicator of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringreduce.arrays import empty, zeros
from ringreduce.communicator import Choice, Communicator, Work, local_group
from ringreduce.errors import ClosedError, Error, MismatchError, PeerLost, RankFailed, TimeoutError
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
from ringreduce.world import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    explain,
    finalize,
    gather,
    init,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    world,
)

if TYPE_CHECKING:
    from ringreduce.launch import run

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "ClosedError",
    "Communicator",
    "Error",
    "Local",
    "MismatchError",
    "PeerLost",
    "RankFailed",
    "Recv",
    "Round",
    "Schedule",
    "ScheduleError",
    "Send",
    "TimeoutError",
    "Work",
    "algorithms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "check",
    "empty",
    "explain",
    "finalize",
    "gather",
    "init",
    "local_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "register",
    "run",
    "scatter",
    "schedule",
    "send",
    "world",
    "zeros",
]


def __getattr__(name: str) -> Any:
    # What starts processes needs a good part of the standard library, which a rank does not.
    if name == "run":
        from ringreduce.launch import run

        globals()["run"] = run
        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
