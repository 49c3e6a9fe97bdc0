"""Asynchronous training of word embeddings with a parameter server: only the rows of words in use travel.

Workers learn a made-up class of the first of two words. Whoever is free takes the next batch, so a slow rank holds up
nobody.

ringreduce run -n 3 python examples/parameter_server.py --servers 1
torchrun --nproc-per-node 2 examples/parameter_server.py --staleness 2
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import ringreduce

WORDS = 2000


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, sparse=True)
        self.output = nn.Linear(32, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(words).flatten(1))


def batch(number: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pairs of words [samples, 2], common ones more often, and the first one's class [samples]."""
    generator = torch.Generator().manual_seed(number)
    words = (WORDS * torch.rand(samples, 2, generator=generator) ** 4).long()
    return words, words[:, 0] % 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, help="ranks that only serve; by default all work and serve")
    parser.add_argument(
        "--staleness", type=int, help="clocks that a worker may be ahead; by default any number"
    )
    parser.add_argument("--batches", type=int, default=600, help="batches of all workers (600)")
    args = parser.parse_args()

    with ringreduce.init() as comm:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = Classes()
        server = ringreduce.ParameterServer(
            comm, model, torch.optim.Adagrad, lr=0.3, staleness=args.staleness, servers=args.servers
        )
        if comm.rank not in server.workers:
            server.serve()
            return
        losses = []
        for number in server.batches(args.batches):
            words, classes = batch(number, 32)
            server.zero_grad()
            loss = nn.functional.cross_entropy(model(words), classes)
            loss.backward()
            server.step()
            losses.append(loss.item())
        server.close()
        first, last = losses[:10], losses[-10:]
        print(
            f"rank {comm.rank}: {len(losses)} batches, loss {sum(first) / len(first):.3f} at first, "
            f"{sum(last) / len(last):.3f} in the end",
            flush=True,
        )


if __name__ == "__main__":
    main()
