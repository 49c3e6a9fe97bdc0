"""Optimizer states and gradients divided among the ranks: :class:`ShardedOptimizer` and what it consists of.

optimizer.py is what a program sees. placement.py says who owns what, shares.py has the memory in which it lies, and
reduce_scatter.py is what happens to gradients. state.py joins and cuts states.
"""

from __future__ import annotations

from ringreduce.sharded_optimizer.optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
