"""DistributedDataParallel under Ray Train (pip install 'ray[train]'), which restarts the job when a worker dies.

python examples/ray_train.py --workers 2 --backend ringreduce [--die-at 12]
"""

import json
import os
import signal
import tempfile
from argparse import Namespace

import ray
import ray.train.torch
import torch
import torch.distributed as dist
from common import average, batch, make_model, options
from torch.nn.functional import mse_loss


def train(given: dict) -> None:
    args, losses = Namespace(**given), []
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if found := ray.train.get_checkpoint():
        state = torch.load(f"{found.path}/state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
    for step in range(len(losses), args.steps):
        x, y = batch(args, step, dist.get_rank(), dist.get_world_size())
        loss = mse_loss(model(x), y)
        if (step, dist.get_rank(), found) == (args.die_at, 1, None):
            ray.train.get_all_reported_checkpoints()  # waits for what is being saved
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
        if (step + 1) % 5 == 0 or step + 1 == args.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            job = {"backend": dist.get_backend(), "world": dist.get_world_size(), "resumed": bool(found)}
            with tempfile.TemporaryDirectory() as folder:
                torch.save(state, f"{folder}/state.pt")
                mine = None if dist.get_rank() else ray.train.Checkpoint(folder)
                ray.train.report({**job, "losses": losses}, mine)


if __name__ == "__main__":
    args = options(__doc__, workers=dict(type=int, default=2), die_at=dict(type=int), folder={})
    ray.init(num_cpus=args.workers)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=vars(args),
        torch_config=ray.train.torch.TorchConfig(backend=args.backend),
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers),
        run_config=ray.train.RunConfig(storage_path=args.folder, failure_config=ray.train.FailureConfig(1)),
    )
    print(json.dumps(trainer.fit().metrics))
