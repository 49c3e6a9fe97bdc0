"""Data parallelism from scratch, on ringreduce's public API: buckets, hooks, asynchronous all-reduces and a wait.

Every rank trains the whole model on its own part of each batch, and gradients are averaged before each step.
docs/training.md explains this program from top to bottom; ringreduce.DataParallel is the complete version.

torchrun --nproc-per-node 2 examples/data_parallel_from_scratch.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial

import torch
from torch.nn.functional import mse_loss

import ringreduce

BUCKET_BYTES = 25 << 20
WIDTH = 32


class Bucket:
    """Parameters whose gradients travel together, side by side in one flat tensor."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.parameters = parameters
        self.flat = ringreduce.empty(sum(sizes), parameters[0].dtype)
        parts = zip(self.flat.split(sizes), parameters, strict=True)
        self.views = [part.view_as(parameter) for part, parameter in parts]
        self.missing = len(parameters)  # gradients that the backward pass has not computed yet


def in_buckets(parameters: Iterable[torch.nn.Parameter], limit: int) -> list[Bucket]:
    """Divides parameters, in the given order, into buckets of at most limit bytes (or one parameter)."""
    groups: list[list[torch.nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if not groups or parameter.nbytes > room:
            groups.append([])
            room = limit
        groups[-1].append(parameter)
        room -= parameter.nbytes
    return [Bucket(group) for group in groups]


class Averager:
    """Averages a model's gradients over the ranks while the backward pass computes them.

    Call :meth:`finish` between ``backward()`` and the optimizer's step. The parameters must be on the CPU and have one
    dtype. Each backward pass must compute a dense gradient for each of them.
    """

    def __init__(
        self, model: torch.nn.Module, comm: ringreduce.Communicator, limit: int = BUCKET_BYTES
    ) -> None:
        self.comm = comm
        for tensor in model.state_dict().values():
            comm.broadcast(tensor, root=0)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = in_buckets(reversed(trained), limit)
        self.under_way: list[ringreduce.Work] = []
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                hook = partial(self._gradient_came, bucket, view)
                parameter.register_post_accumulate_grad_hook(hook)

    def _gradient_came(self, bucket: Bucket, view: torch.Tensor, parameter: torch.Tensor) -> None:
        if parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view
        bucket.missing -= 1
        for following in self.buckets[len(self.under_way) :]:  # every rank starts them in this order
            if following.missing:
                break
            self.under_way.append(self.comm.all_reduce(following.flat, op="avg", async_op=True))

    def finish(self) -> None:
        """Waits until every parameter's ``.grad`` is the average of all ranks' gradients.

        Raises:
            RuntimeError: the backward pass did not compute exactly one gradient for each parameter.
        """
        if any(bucket.missing for bucket in self.buckets):
            raise RuntimeError("each parameter must get exactly one gradient between two calls of finish()")
        for work in self.under_way:
            work.wait()
        self.under_way.clear()
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)


def train(comm: ringreduce.Communicator, steps: int, batch: int) -> list[float]:
    """Learns a made-up function. Returns the loss of each step's global batch."""
    torch.manual_seed(comm.rank)  # Averager gives every rank the weights of rank 0
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, 1)
    )
    averager = Averager(model, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    losses = []
    for step in range(steps):
        samples = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(step))
        x = samples.chunk(comm.size)[comm.rank]
        loss = mse_loss(model(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        averager.finish()
        optimizer.step()
        losses.append(comm.all_reduce(loss.detach(), op="avg").item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=24, help="samples per step, over all ranks")
    options = parser.parse_args()
    with ringreduce.init() as comm:
        losses = train(comm, options.steps, options.batch)
        if comm.rank == 0:
            print("\n".join(f"step {step}: loss {loss:.5f}" for step, loss in enumerate(losses)))


if __name__ == "__main__":
    main()
