"""DistributedDataParallel: every rank has the whole model, and trains it on its part of each batch.

torchrun --nproc-per-node 2 examples/ddp.py --backend ringreduce
"""

import torch
import torch.distributed as dist
from common import average, make_model, options, report, samples
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    args = options(__doc__, compress=dict(action="store_true", help="send gradients as float16"))
    dist.init_process_group(args.backend)

    model = DistributedDataParallel(make_model())
    if args.compress:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    data = samples(args.steps * args.batch)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=sampler)
    losses = []
    for x, y in loader:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
