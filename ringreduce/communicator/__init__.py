"""The communicator: a group of ranks and what they can do together."""

from ringreduce.communicator.base import DEFAULT_TIMEOUT
from ringreduce.communicator.communicator import Communicator

__all__ = ["DEFAULT_TIMEOUT", "Communicator"]
