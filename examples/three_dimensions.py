"""Data, tensor and pipeline parallelism together: 8 ranks as a mesh of 2 x 2 x 2.

    torchrun --nproc-per-node 8 examples/three_dimensions.py --backend ringreduce

Each half of the ranks holds half of the layers, and sends activations and their gradients to the other half in
microbatches. In each half, pairs of ranks divide the layers, and two such pairs divide the batch.
"""

import torch
import torch.distributed as dist
from common import Block, average, batch, make_model, options, report
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss

MICROBATCHES = 3


def main() -> None:
    args = options(__doc__)
    dist.init_process_group(args.backend)
    world = dist.get_world_size()
    shape = (2, 2, world // 4) if world > 1 else (1, 1, 1)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("pipeline", "data", "tensor"))
    stage, stages = mesh.get_local_rank("pipeline"), mesh["pipeline"].size()
    part, parts = mesh.get_local_rank("data"), mesh["data"].size()

    layers = make_model()
    half = len(layers) // stages
    model = layers[stage * half : (stage + 1) * half]
    for layer in model:
        if isinstance(layer, Block):
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    group = mesh["pipeline"].get_group()
    pipeline = PipelineStage(model, stage, stages, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(pipeline, MICROBATCHES, loss_fn=mse_loss)

    losses = []
    for step in range(args.steps):
        x, y = batch(args, step, part, parts)
        found: list[torch.Tensor] = []
        optimizer.zero_grad()
        schedule.step(*[x] * (stage == 0), **({"target": y, "losses": found} if stage == stages - 1 else {}))
        optimizer.step()
        # Only the last stage knows the loss: the sum over all ranks is that of a half of them.
        loss = torch.stack(found).mean() if found else torch.zeros(())
        losses.append(average(loss) * stages)

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
