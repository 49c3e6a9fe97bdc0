"""Another name of :mod:`ringreduce.horovod.keras`, as Horovod has it."""

from ringreduce.frameworks.horovod.keras import *  # noqa: F403
from ringreduce.frameworks.horovod.keras import __all__, callbacks  # noqa: F401
