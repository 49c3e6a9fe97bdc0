"""ZeroRedundancyOptimizer: DistributedDataParallel with the optimizer's states divided among the ranks.

torchrun --nproc-per-node 2 examples/zero.py --backend ringreduce
"""

import torch
import torch.distributed as dist
from common import average, batch, make_model, options, report
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = options(__doc__)
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.003)

    losses = []
    for step in range(args.steps):
        x, y = batch(args, step, rank, world)
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
