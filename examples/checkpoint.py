"""torch.distributed.checkpoint: save with one number of ranks, and continue with another.

torchrun --nproc-per-node 4 examples/checkpoint.py --backend ringreduce --steps 10 --save /tmp/saved
torchrun --nproc-per-node 2 examples/checkpoint.py --backend ringreduce --steps 10 --load /tmp/saved
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import average, batch, make_model, options, report
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss


class Training:
    """The model and optimizer of a checkpoint. Each rank saves and loads its own part."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]


def main() -> None:
    args = options(
        __doc__, save=dict(help="the folder to save to"), load=dict(help="the folder to load from")
    )
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    model = make_model()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=0.003))
    if args.load:
        dcp.load({"training": training}, checkpoint_id=args.load)

    losses = []
    for _ in range(args.steps):
        x, y = batch(args, training.step, rank, world)
        loss = mse_loss(model(x), y)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.step += 1
        losses.append(average(loss))

    if args.save:
        dcp.save({"training": training}, checkpoint_id=args.save)
    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
