"""A rank dies, torchrun restarts all ranks, and training continues from the last checkpoint.

torchrun --nproc-per-node 2 --max-restarts 2 examples/elastic.py --folder /tmp/saved --die-at 12
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import average, batch, make_model, options, report
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def save(path: Path, state: dict) -> None:
    """Saves a checkpoint atomically: it is complete even if this rank dies meanwhile."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    args = options(
        __doc__,
        folder=dict(type=Path, required=True, help="the folder for the checkpoint"),
        every=dict(type=int, default=5, help="steps between checkpoints"),
        die_at=dict(type=int, help="the step in which rank 1 kills itself, before any restart"),
    )
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    path = args.folder / "checkpoint.pt"
    losses = []
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        print(f"rank {rank} continues from step {len(losses)}", file=sys.stderr)

    for step in range(len(losses), args.steps):
        x, y = batch(args, step, rank, world)
        loss = mse_loss(model(x), y)
        if step == args.die_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss))
        if rank == 0 and len(losses) % args.every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            save(path, state)

    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
