"""The functions that start the communicator of all ranks."""

from __future__ import annotations

from ringreduce.communicator.world import remembered
from ringreduce.start import bootstrap

__all__ = ["init", "join"]

init = remembered(bootstrap.init)
join = remembered(bootstrap.join)
