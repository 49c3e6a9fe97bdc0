"""Replicas train on while one of them dies and comes back, with torchft (pip install torchft).

    torchft_lighthouse --bind [::]:29510 --min_replicas 1 --join_timeout_ms 2000 --heartbeat_timeout_ms 1000 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    torchrun --standalone --max-restarts 2 examples/torchft_ddp.py & torchrun --standalone examples/torchft_ddp.py

A replica that starts, or starts again, gets the weights of the others. A step that fails is not taken. Training ends
after --steps steps of all replicas without an interruption.
"""

import json
import os
import signal
from datetime import timedelta

import torch
from common import batch, make_model, options
from torch.nn.functional import mse_loss
from torchft import Manager, Optimizer

from ringreduce.torchft import ProcessGroupRingreduce


def main() -> None:
    args = options(__doc__, replicas=dict(type=int, default=2), die_after=dict(type=int))
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["sgd"])

    manager = Manager(
        pg=ProcessGroupRingreduce(timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
        min_replica_size=1,
        hostname="localhost",
    )
    optimizer = Optimizer(manager, sgd)
    restarts, sizes = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), []
    while sizes[-args.steps :] != [args.replicas] * args.steps:
        optimizer.zero_grad()  # finds out who takes part in this step
        part, parts = manager.participating_rank() or 0, manager.num_participants()
        x, y = batch(args, manager.current_step(), part, parts)
        loss = mse_loss(model(x), y)
        if restarts == 0 and sizes.count(args.replicas) == args.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        for work in [manager.allreduce(p.grad) for p in model.parameters()]:
            work.wait()
        optimizer.step()  # unless a replica was lost
        sizes.append(parts)
    job = {"restarts": restarts, "steps": manager.current_step(), "sizes": sizes}
    print(json.dumps({**job, "weights": [p.sum().item() for p in model.parameters()]}), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
