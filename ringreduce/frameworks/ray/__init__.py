"""Groups of Ray actors whose collectives (``ray.util.collective``) run on ringreduce.

>>> import ray.util.collective as collective, ringreduce.ray
>>> ringreduce.ray.register()  # in the driver, and in every actor
>>> collective.init_collective_group(2, rank, "ringreduce", "sums")  # in every actor
>>> collective.allreduce(x, "sums")  # x: a NumPy array or a torch tensor

Ray Train needs none of this: ``TorchConfig(backend="ringreduce")``.
"""

from ringreduce.requirement import unmet as _unmet

try:
    from ringreduce.frameworks.ray.collective_group import RingreduceGroup, register
except ImportError as _error:
    raise _unmet("ringreduce.ray", "ray", "2.56", _error) from None

__all__ = ["RingreduceGroup", "register"]
