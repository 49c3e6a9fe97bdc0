"""A process group for torchft's Manager: replicas come and go while the others train on.

>>> from torchft import Manager
>>> from ringreduce.torchft import ProcessGroupRingreduce
>>> manager = Manager(pg=ProcessGroupRingreduce(), load_state_dict=load, state_dict=save, min_replica_size=1)
"""

from ringreduce.requirement import unmet as _unmet

try:
    from ringreduce.frameworks.torchft.process_group import ProcessGroupRingreduce
except ImportError as _error:
    raise _unmet("ringreduce.torchft", "torchft", "0.2", _error) from None

__all__ = ["ProcessGroupRingreduce"]
