"""Batch shares that follow the ranks' measured speed: :class:`Balance`.

balance = Balance(comm, batch=64)
sampler = ShardedSampler(len(data), 64, comm.rank, comm.size, shares=balance.shares_at)
for x, y in DataLoader(data, batch_sampler=sampler):
    with balance.measure():
        loss = model(x, y).mean() * balance.weight(len(x))
    ...
    balance.step()
"""

from __future__ import annotations

from ringreduce.training.balance.balance import Balance
from ringreduce.training.balance.batch_shares import equal_shares, fair_shares

__all__ = ["Balance", "equal_shares", "fair_shares"]
