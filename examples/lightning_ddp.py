"""DistributedDataParallel under Lightning (pip install lightning).

torchrun --nproc-per-node 2 examples/lightning_ddp.py --backend ringreduce
"""

import os

import lightning
import torch
import torch.distributed as dist
from common import average, make_model, options, report, samples
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = make_model(), []

    def training_step(self, pair: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = pair
        loss = mse_loss(self.model(x), y)
        self.losses.append(average(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    args = options(__doc__)
    world = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
        strategy=DDPStrategy(process_group_backend=args.backend),
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
