"""Optimizer states and gradients divided among the ranks: :class:`ShardedOptimizer` and what it consists of.

optimizer.py is what a program sees; placement.py says who owns what; bucket.py is the memory in which it lies;
gradients.py is what happens in a backward pass; state.py joins and cuts states.
"""

from __future__ import annotations

from ringreduce.sharded_optimizer.optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
