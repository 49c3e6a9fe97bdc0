"""Tensor parallelism with DTensor: the ranks divide each layer. With --data-parallel they also divide batches.

torchrun --nproc-per-node 2 examples/tensor_parallel.py --backend ringreduce
torchrun --nproc-per-node 4 examples/tensor_parallel.py --backend ringreduce --data-parallel 2
"""

import torch
import torch.distributed as dist
from common import Block, average, batch, make_model, options, report
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss


def main() -> None:
    args = options(__doc__, data_parallel=dict(type=int, default=1, help="groups that divide the batch"))
    dist.init_process_group(args.backend)
    shape = (args.data_parallel, dist.get_world_size() // args.data_parallel)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))

    model = make_model()
    for layer in model:
        if isinstance(layer, Block):
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["tensor"], plan)
    if args.data_parallel > 1:
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    losses = []
    for step in range(args.steps):
        x, y = batch(args, step, mesh.get_local_rank("data"), args.data_parallel)
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
