"""Which trials there are, and how one is drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import ringreduce
from tests.communicator.collectives.calls import COLLECTIVES, ROOTED, TAKES_ALL, WHOLE, Call

TRANSPORTS = ("local", "shm", "tcp", "shm+tcp", "ofi", "shm+ofi")
OVER_LIBFABRIC = ("ofi", "shm+ofi")
# How a rank fails, and at which moments. "before" is before the first call, "between" after some that went well,
# "during" amid one; in "shrink" another rank has been killed already.
MOMENTS = {
    "kill": ("before", "during", "between", "shrink", "init"),
    "stop": ("before", "during", "between", "shrink", "init"),
    "exit": ("before", "during", "between", "shrink", "init"),
    "raise": ("before", "during", "between", "shrink", "init"),
    "close": ("before", "during", "between"),
    "two": ("before", "during", "between"),
    "cut": ("during", "between"),
    "never": ("before", "between", "shrink", "init"),
    "late": ("before", "between", "shrink", "init"),
    "too late": ("before", "between"),
    "mismatch": ("before", "between"),
    "signals": ("before", "between"),
    "daemon": ("during",),
    "descriptors": ("init",),
    "threads": ("before",),
    "join": ("any",),
    "join and kill": ("any",),
    "join and stop": ("any",),
}
JOINS = ("join", "join and kill", "join and stop")  # newcomers come at any time, and ranks of all kinds fail
# The rank takes no further part, and the others learn it at once.
ENDS = ("kill", "exit", "raise", "close", "daemon", "descriptors", "threads")
HARMLESS = ("late", "signals")  # nothing may fail
HANGS = ("stop", "never", "too late")  # the others have to wait for a timeout
STAYS = ("stop", "never")  # the rank does not end by itself
# Of threads of one process: what does not end them all.
IN_A_PROCESS = {
    "raise": ("before", "between"),
    "close": ("before", "during", "between"),
    "two": ("before", "between"),
    "never": ("before", "between", "shrink"),
    "late": ("before", "between", "shrink"),
    "too late": ("before", "between"),
    "mismatch": ("before", "between"),
}
BETWEEN_HOSTS = ("tcp", "shm+tcp", *OVER_LIBFABRIC)
SIZES = (1, 40, 1000, 20_000, 20_000, 100_000)  # elements that a rank takes or gives, about
SHORT = 1.0  # seconds that a call waits for a rank that hangs
# Times as long: a communicator's timeout where it is the end, and where it must not be.
LONGER, LONGEST = 3, 10


@dataclass(frozen=True)
class Step:
    """A call of all ranks: a collective, "barrier", or "exchange", a message to the right and one from the left."""

    name: str
    call: Call
    background: bool = False


@dataclass(frozen=True)
class Fault:
    """What happens to a rank: after `calls` calls, at once or (amid a call) `delay` seconds later."""

    rank: int
    how: str
    moment: str
    calls: int = 0
    delay: float = 0.0


@dataclass(frozen=True)
class Trial:
    """The ranks make `steps` again and again, until something is wrong or, where nothing should be, for `rounds`."""

    seed: int
    number: int
    transport: str
    world: int
    hosts: tuple[int, ...]  # each rank's
    kind: str
    moment: str
    faults: tuple[Fault, ...]
    steps: tuple[Step, ...]
    timeout: float | None  # of calls; None: the communicator's
    patience: float  # the communicator's timeout
    measured: bool  # whether links between hosts are
    rounds: int = 2
    newcomers: tuple[float, ...] = ()  # the seconds after which each of them comes

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that fail; of a host that is cut off all."""
        struck = {fault.rank for fault in self.faults}
        if self.kind != "cut":
            return tuple(sorted(struck))
        hosts = {self.hosts[rank] for rank in struck}
        return tuple(rank for rank in range(self.world) if self.hosts[rank] in hosts)

    @property
    def everyone(self) -> int:
        """The number of processes. Newcomers follow the members."""
        return self.world + len(self.newcomers)

    @property
    def lost_for_good(self) -> set[int]:
        """Those of a trial with newcomers that end, and not only pause."""
        return {fault.rank for fault in self.faults if fault.how != "pause"}

    @property
    def on_hosts(self) -> bool:
        """Whether its hosts are namespaces."""
        return self.kind == "cut" or (self.kind in JOINS and self.transport in BETWEEN_HOSTS)

    def fault_of(self, rank: int) -> Fault | None:
        return next((fault for fault in self.faults if fault.rank == rank), None)


def cells(
    transports: Sequence[str], kinds: Sequence[str] = (), moments: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """All combinations of transport, kind and moment that make sense."""
    found = []
    for transport in transports:
        for kind, when in (IN_A_PROCESS if transport == "local" else MOMENTS).items():
            if kind == "cut" and transport not in BETWEEN_HOSTS:
                continue
            for moment in when:
                if (not kinds or kind in kinds) and (not moments or moment in moments):
                    found.append((transport, kind, moment))
    return found


def draw(seed: int, number: int, among: Sequence[tuple[str, str, str]], timeout: float = SHORT) -> Trial:
    """The trial of that number. Every combination comes up once before any comes up again."""
    turn, place = divmod(number, len(among))
    transport, kind, moment = random.Random(f"{seed}/turn {turn}").sample(among, len(among))[place]
    return draw_of(seed, number, transport, kind, moment, timeout)


def draw_of(seed: int, number: int, transport: str, kind: str, moment: str, timeout: float) -> Trial:
    dice = random.Random(f"{seed}/{number}/{transport}/{kind}/{moment}")
    if kind in JOINS:
        return _draw_joins(dice, seed, number, transport, kind, timeout)
    several = kind == "two" or moment == "shrink"
    world = dice.randint(3 if several else 2, 8)
    hosts = _hosts(dice, transport, world)
    while kind == "cut" and len(set(hosts)) == 1:
        hosts = _hosts(dice, transport, world)
    steps = tuple([_step(dice, world) for _ in range(dice.randint(1, 5))] + [_BARRIER])
    if kind == "threads":  # the first asynchronous call needs one
        steps = (replace(_BARRIER, background=True), *steps)
    calls = 0 if moment in ("before", "init") else dice.randint(1, 2 * len(steps))
    if kind == "mismatch" and steps[calls % len(steps)].name == "exchange":
        steps = tuple(step for step in steps if step.name != "exchange")
    faults = _faults(dice, transport, kind, moment, world, calls, timeout)
    in_vain = kind in STAYS and (moment in ("shrink", "init") or transport == "local")
    unseen = moment == "init" and kind not in HARMLESS  # one that fails so early may just be missing
    return Trial(
        seed=seed,
        number=number,
        transport=transport,
        world=world,
        hosts=hosts,
        kind=kind,
        moment=moment,
        faults=faults,
        steps=steps,
        timeout=timeout if kind in HANGS and moment in ("before", "during", "between") else None,
        patience=timeout * (LONGER if in_vain or unseen else LONGEST),
        measured=dice.random() < 0.1,
    )


def _draw_joins(
    dice: random.Random, seed: int, number: int, transport: str, kind: str, timeout: float
) -> Trial:
    world = dice.randint(2, 5)
    newcomers = tuple(dice.choice([0.0, dice.uniform(0, 0.6)]) for _ in range(dice.randint(1, 3)))
    everyone = world + len(newcomers)
    faults = []
    if kind != "join":
        # Somebody must be left in whose memory the group lives on.
        victims = dice.sample(range(everyone), dice.randint(1, min(2, world - 1)))
        for victim in victims:
            ways = ["kill"] if kind == "join and kill" else ["stop"] if victim >= world else ["stop", "pause"]
            faults.append(
                Fault(victim, dice.choice(ways), "any", 0, dice.choice([0.0, dice.uniform(0, 0.8)]))
            )
    return Trial(
        seed=seed,
        number=number,
        transport=transport,
        world=world,
        hosts=_hosts(dice, transport, everyone),
        kind=kind,
        moment="any",
        faults=tuple(faults),
        steps=(),
        timeout=None,
        patience=timeout * 3 * LONGEST,
        measured=dice.random() < 0.1,
        newcomers=newcomers,
    )


def _hosts(dice: random.Random, transport: str, world: int) -> tuple[int, ...]:
    if transport not in BETWEEN_HOSTS:
        return (0,) * world
    if "+" not in transport:
        return tuple(range(world))
    found = [dice.randrange(3) for _ in range(world)]
    numbers = sorted(set(found), key=found.index)
    return tuple(numbers.index(host) for host in found)


_BARRIER = Step("barrier", Call("all_reduce"))


def _step(dice: random.Random, world: int) -> Step:
    name = dice.choice([*COLLECTIVES, "barrier", "exchange"])
    background = dice.random() < 0.25
    size = dice.choice(SIZES)
    if name in ("barrier", "exchange"):
        return Step(name, Call("all_reduce", count=size), background and name == "barrier")
    count = size if name in WHOLE or name not in TAKES_ALL else max(size // world, 1)
    call = Call(
        name,
        count=count,
        algorithm="auto" if dice.random() < 0.5 else dice.choice(_algorithms(name)),
        root=dice.randrange(world) if name in ROOTED else 0,
        op=dice.choice(["sum", "max"]),
        mode=dice.choice(["in_place", "out"]),
        shared_in=dice.random() < 0.2,
        shared_out=dice.random() < 0.2,
    )
    return Step(name, call, background)


@cache
def _algorithms(collective: str) -> list[str]:
    return [entry.name for entry in ringreduce.algorithms(collective)]


def _faults(
    dice: random.Random, transport: str, kind: str, moment: str, world: int, calls: int, timeout: float
) -> tuple[Fault, ...]:
    first, second = dice.sample(range(world), 2)
    amid = dice.choice([1e-5, 1e-4, 1e-3, 5e-3, 2e-2]) * dice.uniform(0.5, 2)
    delays = {"during": amid, "shrink": dice.uniform(0, 5e-3), "init": dice.uniform(0, 0.02)}
    delay = delays.get(moment, 0.0)
    if kind == "late":
        delay = dice.uniform(0.02, 0.4)
    if kind == "too late":
        delay = 2.5 * timeout  # on busy cores the others may begin to wait late
    if moment == "shrink":
        already = Fault(first, "raise" if transport == "local" else "kill", "between", calls)
        return already, Fault(second, kind, moment, calls, delay)
    if kind == "cut":
        return (Fault(first, dice.choice(["cut", "unplug"]), moment, calls, delay),)
    if kind != "two":
        return (Fault(first, kind, moment, calls, delay),)
    ways = ["raise", "close"] if transport == "local" else ["kill", "exit", "raise", "close"]
    if moment == "during" and transport == "local":
        ways = ["close"]
    how = dice.choice(ways)
    other = dice.choice([how, dice.choice(ways)])
    return Fault(first, how, moment, calls, delay), Fault(second, other, moment, calls, delay)
