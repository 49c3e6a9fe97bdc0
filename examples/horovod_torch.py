"""A training program for Horovod, which runs unchanged over ringreduce.

ringreduce run -n 2 --as-horovod python examples/horovod_torch.py
"""

import horovod.torch as hvd
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, WIDTH = 20, 24, 32


def main() -> None:
    hvd.init()
    torch.manual_seed(hvd.rank())  # broadcast_parameters makes the models equal

    x = torch.randn(STEPS * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sin().sum(1, keepdim=True))
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=False)
    loader = DataLoader(data, BATCH // hvd.size(), sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        average = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"step {step}: loss {average.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
