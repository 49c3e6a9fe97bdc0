"""A rank dies, the others continue at once, and only the rank that died is restarted.

ringreduce run -n 3 --restarts 5 examples/elastic_training.py --die-at 12
"""

import os
import signal

import torch
from common import make_model, options, samples
from torch.nn.functional import mse_loss

import ringreduce
from ringreduce import elastic


def main() -> None:
    args = options(
        __doc__,
        die_at=dict(type=int, help="the step in which the last rank kills itself, once"),
        minimum=dict(type=int, default=1, help="wait for ranks while there are fewer"),
    )
    again = "RINGREDUCE_NEWCOMER" in os.environ
    comm = elastic.start()  # a rank that was started again is alone until the loop lets it in
    model = ringreduce.DataParallel(make_model(), comm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = elastic.State(comm, model=model, optimizer=optimizer)

    for step in elastic.steps(state, args.steps, minimum=args.minimum):
        with step:
            x, y = samples(args.batch, seed=step.number).tensors
            if step.number == args.die_at and step.rank == step.size - 1 > 0 and not again:
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = x[step.rank :: step.size], y[step.rank :: step.size]
            optimizer.zero_grad()
            (mse_loss(model(x), y) * len(x) * step.size / args.batch).backward()
            optimizer.step()

    if state.comm.rank == 0:
        x, y = samples(1000, seed=0).tensors
        with torch.no_grad():
            print(f"{state.step} steps, {state.comm.size} ranks at the end: loss {mse_loss(model(x), y):.4f}")


if __name__ == "__main__":
    main()
