"""DistributedDataParallel under Hugging Face Accelerate (pip install accelerate).

    torchrun --nproc-per-node 2 examples/accelerate_ddp.py --backend ringreduce

On CPUs, Accelerate accepts only the backends "gloo" and "mpi" in InitProcessGroupKwargs. But it uses a process group
that exists already, so pass the backend to init_process_group, as without Accelerate.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from common import average, make_model, options, report, samples
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader


def main() -> None:
    args = options(__doc__)
    dist.init_process_group(args.backend)
    accelerator = Accelerator(cpu=True)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(samples(args.steps * args.batch), args.batch // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses = []
    for x, y in loader:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(average(loss))

    report(args, losses)
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main()
