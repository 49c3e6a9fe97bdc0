"""Asynchronous training: servers keep the parameters, workers push gradients and pull parameters.

Read tickets.py first (which worker may begin what), then shard.py (how a gradient is applied), and then service.py and
client.py (who sends what, and what happens when a rank is lost).
"""

from ringreduce.training.parameter_server.server import ParameterServer

__all__ = ["ParameterServer"]
