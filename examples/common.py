"""Code that the examples share: the command line, a small model, made-up data, and the output of losses."""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32


def options(text: str | None, **more: dict) -> argparse.Namespace:
    """Reads the command line. A process that no launcher started becomes the only rank of its job."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ringreduce", help="the backend for init_process_group")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=24, help="samples per step, over all ranks")
    parser.add_argument("--json", action="store_true", help="print the losses as JSON")
    for name, settings in more.items():
        parser.add_argument("--" + name.replace("_", "-"), **settings)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.manual_seed(0)  # the same initial model on all ranks
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def make_model() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), Block(), nn.Linear(WIDTH, 1))


def samples(count: int, seed: int = 1) -> torch.utils.data.TensorDataset:
    """Returns inputs [count, WIDTH] and targets [count, 1], the same on all ranks."""
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))


def batch(args: argparse.Namespace, step: int, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns one of the equal parts of a step's global batch."""
    x, y = samples(args.batch, seed=step).tensors
    return x.chunk(parts)[part], y.chunk(parts)[part]


def average(loss: torch.Tensor) -> float:
    """Returns the loss of the global batch: the mean over the ranks' equal parts."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def report(args: argparse.Namespace, losses: list[float]) -> None:
    if dist.get_rank() == 0:
        if args.json:
            text = json.dumps(
                {"backend": dist.get_backend(), "world": dist.get_world_size(), "losses": losses}
            )
        else:
            text = "\n".join(f"step {step}: loss {loss:.5f}" for step, loss in enumerate(losses))
        print(text, flush=True)
