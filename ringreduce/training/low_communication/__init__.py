"""Training that communicates once in many steps: :class:`LocalSGD`, :class:`DiLoCo` and :class:`StreamingDiLoCo`.

    outer = low_communication.DiLoCo(model.parameters(), comm, every=500)
    for x, y in batches:
        ...
        optimizer.step()
        outer.step()

Every rank trains its own copy of the model with an ordinary optimizer, and ``outer.step()`` synchronises the copies now
and then. base.py has what the methods share; each other file is one method, or a part of it.
"""

from __future__ import annotations

from ringreduce.training.low_communication.diloco import DiLoCo
from ringreduce.training.low_communication.local_sgd import LocalSGD
from ringreduce.training.low_communication.outer import Outer
from ringreduce.training.low_communication.streaming import StreamingDiLoCo

__all__ = ["DiLoCo", "LocalSGD", "Outer", "StreamingDiLoCo"]
