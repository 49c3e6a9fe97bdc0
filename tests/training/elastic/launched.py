"""Elastic training under any launcher: some ranks kill themselves, the others go on, and newcomers complete the group.

``launched.py VICTIM[,VICTIM...]``: each rank that is left in the end prints its end of the story. With ``launched.py
none`` ranks end when they have gone on without others. ``begun=FILE`` and ``went-on=FILE`` name files that ranks make
when they train, and when they have gone on without the victims.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import sys
from pathlib import Path

import torch

if "--here" not in sys.argv:  # hosts of the tests are on one machine, and could share memory after all
    os.environ["RINGREDUCE_HOST"] = platform.node()

import ringreduce
from ringreduce import elastic

DIES_AT, MORE = 5, 5  # steps before the deaths, and with all ranks after them


def main() -> None:
    victims = [] if sys.argv[1] == "none" else [int(victim) for victim in sys.argv[1].split(",")]
    files = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
    comm = elastic.start(timeout=60)
    model = ringreduce.DataParallel(torch.nn.Linear(8, 1), comm)
    # An optimizer of torch's would import as much as torch itself, in each of the ranks.
    state = elastic.State(comm, model=model, momentum=torch.zeros(9), full=comm.size, fewer=0, more=0)
    for step in elastic.steps(state, 10**9):
        with step:
            if step.number == DIES_AT and step.size == state.full and step.rank in victims:
                os.kill(os.getpid(), signal.SIGKILL)
            generator = torch.Generator().manual_seed(step.number)
            x = torch.randn(32, 8, generator=generator)[step.rank :: step.size]
            model.zero_grad()
            model(x).square().mean().backward()
            descend(model, state.momentum)
            state.fewer += step.size < state.full
            state.more += step.size == state.full and state.fewer > 0
        for name, holds in (("begun", state.step > DIES_AT), ("went-on", state.fewer)):
            if holds and name in files:
                Path(files[name]).touch()
        if (state.more if victims else state.fewer) == MORE:
            break
    print(
        f"rank {state.comm.rank} of {state.comm.size}; went on without: {state.fewer > 0}; {digest(state)}\n",
        end="",
    )


def descend(model: torch.nn.Module, momentum: torch.Tensor) -> None:
    parameters = list(model.parameters())
    momentum.mul_(0.9).add_(torch.cat([p.grad.flatten() for p in parameters]))
    with torch.no_grad():
        for p, part in zip(parameters, momentum.split([p.numel() for p in parameters]), strict=True):
            p -= 0.01 * part.view_as(p)


def digest(state: elastic.State) -> str:
    """Of all that ranks must have in common."""
    held = [*state.model.state_dict().values(), state.momentum]
    blob = b"".join(value.numpy().tobytes() for value in held) + f"{state.step} {state.fewer}".encode()
    return hashlib.sha256(blob).hexdigest()


main()
