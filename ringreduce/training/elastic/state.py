"""State: everything that training continues from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from ringreduce.communicator import Communicator
from ringreduce.training.elastic.entries import OptimizerEntry, OuterEntry, entry_of
from ringreduce.training.elastic.entry import Entry
from ringreduce.training.elastic.trees import joined, split

__all__ = ["State"]

OWN = ("comm", "step", "scale_learning_rate")


class State:
    """The model, the optimizer, and everything else that training continues from. All ranks have the same.

    Every named object is an attribute: ``state.epoch += 1`` changes a plain value. Random generators (those of torch's
    CPU, random and numpy.random) belong to a State without being named. Each rank has its own, and a newcomer's get new
    seeds, from the seed of torch's generator, the step and the rank.

    Args:
        comm: the group, from :func:`ringreduce.elastic.first_group`.
        scale_learning_rate: multiplies the learning rates of all optimizers by the number of ranks after a change,
            divided by the number before, also those that schedulers begin with. For a constant batch on each rank.
        objects: by name. A module; an optimizer; a tensor; any object with state_dict() and load_state_dict(), and
            with regroup(comm) if it communicates; or a plain value that can be pickled.

    Attributes:
        comm: the group of the ranks that train now. It changes when ranks are lost or join.
        step: the number of steps done.

    Raises:
        ValueError: the name of an object is taken, or an optimizer is that of the local steps of a method of
            :mod:`ringreduce.low_communication`.
    """

    def __init__(self, comm: Communicator, *, scale_learning_rate: bool = False, **objects: Any) -> None:
        self._entries: dict[str, Entry] = {}
        self.comm = comm
        self.step = 0
        self.scale_learning_rate = scale_learning_rate
        for name, value in objects.items():
            self.register(name, value)

    def register(self, name: str, value: Any) -> None:
        """Adds an object."""
        if name in self._entries or name.startswith("_") or hasattr(type(self), name) or name in OWN:
            raise ValueError(f"State: the name {name!r} is taken")
        entry = entry_of(name, value)
        _check_local_steps([*self.entries, entry])
        self._entries[name] = entry

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("_entries", {})
        if name in entries:
            return entries[name].value
        raise AttributeError(f"State has no {name!r}; it has {', '.join(entries) or 'nothing'}")

    def __setattr__(self, name: str, value: Any) -> None:
        entry = self.__dict__.get("_entries", {}).get(name)
        if entry is None:
            if name not in OWN and not name.startswith("_"):
                raise AttributeError(f"State has no {name!r}: add it with register()")
            super().__setattr__(name, value)
        elif type(entry) is type(entry_of(name, value)):
            entry.value = value
        else:
            raise TypeError(f"State: {name!r} cannot become a {type(value).__name__}")

    @property
    def entries(self) -> list[Entry]:
        """Its objects, in the order in which they were registered."""
        return list(self._entries.values())

    @property
    def optimizers(self) -> list[Any]:
        return [entry.value for entry in self.entries if isinstance(entry, OptimizerEntry)]

    @property
    def watched(self) -> list[Any]:
        """The objects whose steps the ranks agree on."""
        return [e.value for e in self.entries if isinstance(e, OptimizerEntry) or hasattr(e.value, "elastic")]

    def description(self) -> list[str]:
        """Returns what must be the same on all ranks."""
        return [line for entry in self.entries for line in entry.description()]

    # --- a step that is not applied ----------------------------------------------------------------------------

    def keep(self) -> Any:
        """Returns a copy of what a step may change before it is applied."""
        generators = torch.get_rng_state(), random.getstate(), np.random.get_state()
        return [entry.keep() for entry in self.entries], generators

    def put_back(self, kept: Any) -> None:
        """Undoes what a step has changed. Gradients are removed."""
        values, (torchs, pythons, numpys) = kept
        for entry, value in zip(self.entries, values, strict=True):
            entry.put_back(value)
        torch.set_rng_state(torchs)
        random.setstate(pythons)
        np.random.set_state(numpys)

    # --- the state as a whole ----------------------------------------------------------------------------------

    def shared(self) -> tuple[Any, list[Any]]:
        """Returns the state that all ranks share, as a description and tensors, which are not copies."""
        seed = torch.initial_seed()
        return split({"step": self.step, "seed": seed, "objects": {e.name: e.tree() for e in self.entries}})

    def receiving(self, description: Any) -> list[Any]:
        """Returns tensors to receive another rank's state into: a model's own, and new ones for everything else."""
        own = {entry.name: entry.own_tensors() for entry in self.entries}
        found: list[Any] = []

        def walk(node: Any, mine: Any) -> None:
            if hasattr(node, "empty"):
                found.append(mine if torch.is_tensor(mine) else node.empty())
            elif isinstance(node, dict):
                for key, value in node.items():
                    walk(value, mine.get(key) if isinstance(mine, dict) else None)
            elif type(node) in (list, tuple):
                for value in node:
                    walk(value, None)

        for name, tree in description["objects"].items():
            mine = own[name]
            walk(tree, mine if mine is None or isinstance(tree, dict) else mine[name])
        return found

    def load_shared(self, description: Any, tensors: list[Any]) -> None:
        """Sets the state that all ranks share."""
        tree = joined(description, tensors)
        for entry in self.entries:
            entry.load(tree["objects"][entry.name])
        self.step = tree["step"]

    def seed(self, seed: int) -> None:
        """Gives a newcomer's generators seeds of their own."""
        own = np.random.SeedSequence([seed % 2**64, self.step, self.comm.rank]).generate_state(1)[0]
        torch.manual_seed(int(own))
        random.seed(int(own))
        np.random.seed(int(own))

    def follow_world(self, factor: float) -> None:
        """Multiplies learning rates, if the State was asked to."""
        if not self.scale_learning_rate or factor == 1.0:
            return
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr"):
                    if key in group:
                        group[key] = group[key] * factor
        for entry in self.entries:
            if hasattr(entry.value, "base_lrs"):
                entry.value.base_lrs = [rate * factor for rate in entry.value.base_lrs]
                if hasattr(entry.value, "_last_lr"):
                    entry.value._last_lr = [rate * factor for rate in entry.value._last_lr]


def _check_local_steps(entries: list[Entry]) -> None:
    """Refuses optimizers of local steps: in the first step of a round, the ranks would agree that it is done."""
    local = {id(p) for entry in entries if isinstance(entry, OuterEntry) for p in entry.value.parameters}
    for entry in entries:
        groups = entry.value.param_groups if isinstance(entry, OptimizerEntry) else []
        if local & {id(p) for group in groups for p in group["params"]}:
            raise ValueError(
                f"State: {entry.name!r} is the optimizer of the local steps between synchronisations; leave it out, "
                "because each rank has its own"
            )
