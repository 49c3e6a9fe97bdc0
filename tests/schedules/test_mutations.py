"""The checker refuses a schedule with one step dropped, doubled, changed or moved.

One kind of change can leave the schedules right: two rounds of one rank that change places. The ranks then
wait for each other in another order, or add in another order, and neither need be wrong. Such survivors have
to give right results on numbers in the independent reference. Every other change must be refused. (A round of
nothing but copies is not doubled: copying twice is copying once.)
"""

import copy
import random

import pytest
from reference import is_right

from ringreduce import schedules
from ringreduce._engine import schedules as engine

CATALOGUE = [(entry.collective, entry.name) for entry in schedules.algorithms()]
KINDS = ("drop", "double", "peer", "chunk", "reduce", "round", "double round", "swap")


def other_than(draw, value, size):
    return draw.choice([i for i in range(size) if i != value])


def mutate(plan, kind, draw):
    """Changes one step of one rank's schedule; False if there is nothing of that kind to change."""
    busy = [k for k, r in enumerate(plan.rounds) if r.sends or r.recvs or r.locals]
    if not busy:
        return False
    k = draw.choice(busy)
    now = plan.rounds[k]
    steps = draw.choice([steps for steps in (now.sends, now.recvs, now.locals) if steps])
    i = draw.randrange(len(steps))
    step = steps[i]
    if kind == "drop":
        del steps[i]
    elif kind == "double":
        steps.insert(i, copy.deepcopy(step))
    elif kind == "peer":
        return change_peer(plan, step, draw)
    elif kind == "chunk":
        return change_chunk(plan, step, draw)
    elif kind == "reduce":
        if not hasattr(step, "reduce"):
            return False
        step.reduce = not step.reduce
    elif kind == "round":
        del plan.rounds[k]
    elif kind == "double round":
        if not now.sends and not now.recvs:
            return False  # the same copies once more change nothing
        plan.rounds.insert(k, copy.deepcopy(now))
    elif kind == "swap":
        other = draw.choice(busy)
        plan.rounds[k], plan.rounds[other] = plan.rounds[other], plan.rounds[k]
        return now != plan.rounds[k]
    return True


def change_peer(plan, step, draw):
    if isinstance(step, schedules.Recv):
        step.peer = other_than(draw, step.peer, plan.world)
    elif isinstance(step, schedules.Send):
        others = [p for p in range(plan.world) if p not in step.peers]
        step.peers[draw.randrange(len(step.peers))] = draw.choice(others)
        step.peers.sort()
    else:
        return False
    return True


def change_chunk(plan, step, draw):
    total = plan.chunks + plan.scratch
    if isinstance(step, schedules.Local):
        step.to = (other_than(draw, step.to[0], total), step.to[1])
        return True
    if total < 2:
        return False
    j = draw.randrange(len(step.chunks))
    first, count = step.chunks[j]
    step.chunks[j] = (other_than(draw, first, total), count)
    return True


@pytest.mark.parametrize(("collective", "name"), CATALOGUE)
def test_every_mutant_is_refused(collective, name):
    draw = random.Random(f"{collective} {name}")
    for world in (2, 3, 4, 5, 6, 8):
        root = draw.randrange(world) if collective in ("broadcast", "reduce", "gather", "scatter") else 0
        plans = [schedules.schedule(collective, name, world, rank, root) for rank in range(world)]
        for kind in KINDS * 10:
            mutant = copy.copy(plans)
            rank = draw.randrange(world)
            mutant[rank] = copy.deepcopy(plans[rank])
            if not mutate(mutant[rank], kind, draw):
                continue
            if engine.check(mutant) == "":
                assert kind == "swap", f"{kind} survives:\n{plans[rank]}\nbecame\n{mutant[rank]}"
                assert is_right(mutant), f"wrong, but passes:\n{plans[rank]}\nbecame\n{mutant[rank]}"
