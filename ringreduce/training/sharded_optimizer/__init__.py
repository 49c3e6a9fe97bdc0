"""Optimizer states and gradients divided among the ranks: :class:`ShardedOptimizer` and its parts.

optimizer.py has the class that programs use. placement.py decides which rank owns what, shares.py holds the memory,
reduce_scatter.py averages the gradients, and state.py joins and cuts optimizer states.
"""

from __future__ import annotations

from ringreduce.training.sharded_optimizer.optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
