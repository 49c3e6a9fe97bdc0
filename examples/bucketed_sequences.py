"""Sequences of similar length share a batch, and slower ranks get fewer of them.

torchrun --nproc-per-node 2 examples/bucketed_sequences.py --slow-rank 1
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import embedding, mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import ringreduce
from ringreduce.balance import Balance
from ringreduce.train.data import ShardedSampler

TOKENS, LONGEST, WIDTH = 32, 64, 16


def bucketed(count: int, batch: int) -> list[torch.Tensor]:
    """Returns made-up sequences of tokens, in an order in which each batch has sequences of similar length."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LONGEST + 1, (count,), generator=draw)
    sequences = [torch.randint(1, TOKENS, (int(length),), generator=draw) for length in lengths.sort().values]
    batches = torch.randperm(count // batch, generator=draw).tolist()  # short and long ones in any order
    return [sequence for number in batches for sequence in sequences[number * batch : (number + 1) * batch]]


class Model(torch.nn.Module):
    """Predicts a number [sequences, 1] from each sequence. Token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.read = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU())
        self.answer = torch.nn.Linear(4 * WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real = (x > 0).unsqueeze(2)
        return self.answer((self.read(embedding(x, self.tokens)) * real).sum(1) / real.sum(1))


def train(comm: ringreduce.Communicator, steps: int, batch: int, slow_rank: int | None) -> list[float]:
    """Returns the loss of each step's global batch."""
    torch.manual_seed(comm.rank)  # DataParallel gives every rank the weights of rank 0
    model = ringreduce.DataParallel(Model(), comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = bucketed(40 * batch, batch)
    balance = Balance(comm, batch=batch, every=5)
    # The order is that of bucketed().
    sampler = ShardedSampler(len(data), batch, comm.rank, comm.size, shuffle=False, shares=balance.shares_at)
    loader = DataLoader(
        data, batch_sampler=sampler, collate_fn=lambda few: pad_sequence(few, batch_first=True)
    )
    losses = []
    for _, x in zip(range(steps), loader, strict=False):
        with balance.measure():  # the forward pass waits for no other rank
            target = x.float().sum(1, keepdim=True) / (x > 0).sum(1, keepdim=True) / TOKENS
            loss = mse_loss(model(x), target) * balance.weight(len(x))
            if comm.rank == slow_rank:
                time.sleep(2e-5 * x.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(comm.all_reduce(loss.detach(), op="avg").item())
        if comm.rank == 0 and balance.steps % 10 == 9:
            print(
                f"step {balance.steps}: {x.shape[1]} tokens, samples of the ranks {balance.shares}",
                flush=True,
            )
        balance.step()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="samples per step, over all ranks")
    parser.add_argument("--slow-rank", type=int, help="a rank that is to be slower than the others")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ringreduce.init() as comm:
        losses = train(comm, options.steps, options.batch, options.slow_rank)
        if comm.rank == 0:
            print("\n".join(f"step {step}: loss {loss:.5f}" for step, loss in enumerate(losses)))


if __name__ == "__main__":
    main()
