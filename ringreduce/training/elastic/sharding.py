"""An FSDP2 model on the ranks of one process group, and copies of other ranks' shards."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.kinds import choose_cut
from ringreduce.training.foundation.transfer import as_bytes, move
from ringreduce.training.sharded_optimizer.division import owners_of_copies
from ringreduce.training.sharded_optimizer.regroup import StateLost, holders

__all__ = ["Sharding", "move_shards", "part_of"]


class Sharding:
    """A model on the ranks of torch's default process group.

    Attributes:
        own: this rank's shards, and the optimizer's state of them.
        parts: these, and the copies of other ranks' shards, by owner.
        group: the process group.
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]], copies: int) -> None:
        self.model, self.optimizer = make()
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        if copies and choose_cut(type(self.optimizer), None) != "elements":
            raise ValueError(
                f"FullyShard: copies of {type(self.optimizer).__name__} would differ; set copies=0"
            )
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        known = {id(p) for p in self.parameters}
        for name, parameter in self.model.named_parameters():
            if not hasattr(parameter, "to_local") or id(parameter) not in known:
                raise ValueError(f"FullyShard: parameter {name!r} must be sharded, and in the optimizer")
        self.group = torch.distributed.group.WORLD
        self.own = OwnShards(self)
        self.parts: dict[int, Any] = {self.rank: self.own}
        for owner in owners_of_copies(self.rank, self.size, copies)[1:]:
            self.parts[owner] = CopiedShards(self, owner)
        self._hooks: list[Any] = []

    def rows(self, number: int, rank: int, size: int) -> tuple[int, int]:
        """Returns the range of elements of a parameter that a rank of a group of this size has."""
        parameter = self.parameters[number]
        rows = parameter.shape[0]
        each, width = -(-rows // size), parameter.numel() // max(rows, 1)
        return min(rank * each, rows) * width, min((rank + 1) * each, rows) * width

    def follow(self, owner: Any) -> None:
        """Makes each step of the optimizer update the copies, too, once the ranks agree (``owner.elastic``)."""
        for hook in self._hooks:
            hook.remove()

        def before(*_: Any) -> None:
            if owner.elastic is not None:
                self.send_gradients(owner.elastic.comm)
                owner.elastic.commit()

        def after(*_: Any) -> None:
            if owner.elastic is not None:
                for part in [*self.parts.values()][1:]:
                    part.step(self.optimizer.param_groups)

        self._hooks = [
            self.optimizer.register_step_pre_hook(before), self.optimizer.register_step_post_hook(after),
        ]  # fmt: skip

    def send_gradients(self, comm: Communicator) -> None:
        outgoing, incoming = [], []
        for distance, (owner, part) in enumerate([*self.parts.items()][1:], 1):
            for number, parameter in enumerate(self.parameters):
                if parameter.grad is None:
                    part.parameters[number].grad = None
                    continue
                outgoing.append(((comm.rank + distance) % comm.size, as_bytes(parameter.grad.to_local())))
                incoming.append((owner, as_bytes(part.gradient(number))))
        move(comm, outgoing, incoming)


class OwnShards:
    """This rank's shards."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding

    def values(self, number: int) -> dict[str, Any]:
        """Returns a parameter's shard and the state of it: the shard as "", other values that are cut like it."""
        parameter = self._sharding.parameters[number]
        state = self._sharding.optimizer.state.get(parameter, {})
        return {"": parameter.to_local().detach()} | {
            key: value.to_local() if hasattr(value, "to_local") else value for key, value in state.items()
        }

    def kinds(self, number: int) -> dict[str, Any]:
        """Returns, for each value of the state, its dtype if it is cut, and else the value."""
        state = self._sharding.optimizer.state.get(self._sharding.parameters[number], {})
        return {key: value.dtype if hasattr(value, "to_local") else value for key, value in state.items()}

    def make_state(self, number: int, kinds: dict[str, Any]) -> None:
        parameter = self._sharding.parameters[number]
        self._sharding.optimizer.state[parameter] = _state_like(parameter, kinds)


class CopiedShards:
    """A copy of another rank's shards."""

    def __init__(self, sharding: Sharding, owner: int) -> None:
        self.parameters = []
        for number, parameter in enumerate(sharding.parameters):
            first, last = sharding.rows(number, owner, sharding.size)
            rows = (last - first) * parameter.shape[0] // max(parameter.numel(), 1)
            local = torch.empty((rows, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
            self.parameters.append(torch.nn.Parameter(local))
        groups, left = [], iter(self.parameters)
        for group in sharding.optimizer.param_groups:
            groups.append({**group, "params": [next(left) for _ in group["params"]]})
        kind: Any = type(sharding.optimizer)
        self.optimizer = kind.__new__(kind)
        self.optimizer.__setstate__(
            {
                "defaults": dict(sharding.optimizer.defaults),
                "state": defaultdict(dict),
                "param_groups": groups,
            }
        )

    def gradient(self, number: int) -> Any:
        parameter = self.parameters[number]
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        return parameter.grad

    def step(self, groups: Sequence[dict[str, Any]]) -> None:
        for ours, theirs in zip(self.optimizer.param_groups, groups, strict=True):
            ours.update({key: value for key, value in theirs.items() if key != "params"})
        self.optimizer.step()

    def values(self, number: int) -> dict[str, Any]:
        parameter = self.parameters[number]
        return {"": parameter.detach(), **self.optimizer.state.get(parameter, {})}

    def make_state(self, number: int, kinds: dict[str, Any]) -> None:
        self.optimizer.state[self.parameters[number]] = _state_like(self.parameters[number], kinds)


def _state_like(parameter: Any, kinds: dict[str, Any]) -> dict[str, Any]:
    return {
        key: torch.zeros_like(parameter, dtype=kind, requires_grad=False)
        if isinstance(kind, torch.dtype)
        else copy.deepcopy(kind)
        for key, kind in kinds.items()
    }


def move_shards(
    comm: Communicator,
    old: Sharding,
    new: Sharding,
    before: Sequence[int | None],
    size_before: int,
    copies: int,
) -> None:
    """Gives all parts of ``new`` their parameters and states, from the ranks that have them in ``old``.

    Raises:
        StateLost: a shard was on lost ranks only. Every rank raises it.
    """
    was_there = before[comm.rank] is not None
    numbers = range(len(old.parameters))
    kinds: dict[int, dict[str, Any]] = {}
    for found in comm.all_gather_object({n: old.own.kinds(n) for n in numbers} if was_there else {}):
        kinds |= found
    having = holders(before, size_before, copies)
    if None in having:
        raise StateLost(
            f"FullyShard: the shards of rank {having.index(None)} of {size_before} are lost with all of their {copies} "
            "copies. Continue from a checkpoint, or use more copies"
        )
    if new is not old:
        for part in new.parts.values():
            for number, own in kinds.items():
                if own:
                    part.make_state(number, own)
    outgoing, incoming = [], []
    for number, first, last, owner, next_owner, dest in _crossings(old, new, size_before, copies):
        source = having[owner]
        if comm.rank not in (source, dest) or (old is new and source == dest):
            continue
        keys = [
            "",
            *sorted(key for key, kind in kinds.get(number, {}).items() if isinstance(kind, torch.dtype)),
        ]
        for key in keys:
            mine = place = None
            if comm.rank == source:
                begin = old.rows(number, owner, size_before)[0]
                mine = part_of(old.parts[owner].values(number)[key], first - begin, last - begin)
            if comm.rank == dest:
                begin = new.rows(number, next_owner, new.size)[0]
                place = part_of(new.parts[next_owner].values(number)[key], first - begin, last - begin)
            if mine is not None and place is not None:
                place.copy_(mine)
            elif mine is not None:
                outgoing.append((dest, mine))
            else:
                incoming.append((int(source or 0), place))
    move(comm, outgoing, incoming)


def _crossings(
    old: Sharding, new: Sharding, size_before: int, copies: int
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yields ranges of elements: parameter, first, last, the owners before and now, and a rank that wants it."""
    for number in range(len(new.parameters)):
        for next_owner in range(new.size):
            first, last = new.rows(number, next_owner, new.size)
            for owner in range(size_before):
                other_first, other_last = old.rows(number, owner, size_before)
                begin, end = max(first, other_first), min(last, other_last)
                for dest in range(new.size) if begin < end else ():
                    if next_owner in owners_of_copies(dest, new.size, copies):
                        yield number, begin, end, owner, next_owner, dest


def part_of(tensor: Any, first: int, last: int) -> Any:
    """Returns the memory of a range of a tensor's elements, as bytes."""
    size = tensor.element_size()
    return as_bytes(tensor)[first * size : last * size]
