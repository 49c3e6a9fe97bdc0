"""FSDP2: parameters, gradients and optimizer states are divided among the ranks.

torchrun --nproc-per-node 2 examples/fsdp2.py --backend ringreduce [--bfloat16]
"""

import torch
import torch.distributed as dist
from common import Block, average, batch, make_model, options, report
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import mse_loss


def main() -> None:
    args = options(__doc__, bfloat16=dict(action="store_true", help="compute and send in bfloat16"))
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (world,))

    low = torch.bfloat16 if args.bfloat16 else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
    model = make_model()
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    losses = []
    for step in range(args.steps):
        x, y = batch(args, step, rank, world)
        loss = mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
