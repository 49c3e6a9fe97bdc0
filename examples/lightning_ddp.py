"""DistributedDataParallel or FSDP2 under Lightning (pip install lightning).

torchrun --nproc-per-node 2 examples/lightning_ddp.py --backend ringreduce [--fsdp2]
"""

import os

import lightning
import torch
import torch.distributed as dist
from common import average, make_model, options, report, samples
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = make_model(), []

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # under ModelParallelStrategy
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, pair: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = pair
        loss = mse_loss(self.model(x), y)
        self.losses.append(average(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    args = options(__doc__, fsdp2=dict(action="store_true"))
    world = int(os.environ["WORLD_SIZE"])
    strategy = DDPStrategy(process_group_backend=args.backend)
    if args.fsdp2:
        strategy = ModelParallelStrategy(world, 1, process_group_backend=args.backend)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Regression()
    trainer.fit(module, DataLoader(samples(args.steps * args.batch), args.batch // world))
    report(args, module.losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
