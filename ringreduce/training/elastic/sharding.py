"""An FSDP2 model on the ranks of one process group, and copies of other ranks' shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringreduce.communicator import Communicator
from ringreduce.training.foundation.kinds import choose_cut
from ringreduce.training.foundation.optimizer_state import Kinds, state_like
from ringreduce.training.foundation.part import copy_options
from ringreduce.training.foundation.transfer import as_bytes, move
from ringreduce.training.sharded_optimizer.division import owners_of_copies

__all__ = ["Sharding"]


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

    # --- what move_states() moves ----------------------------------------------------------------------------

    def table(self, size: int) -> list[list[tuple[int, int, int]]]:
        numbers = range(len(self.parameters))
        return [[(number, *self.rows(number, rank, size)) for number in numbers] for rank in range(size)]

    def kinds(self) -> Kinds:
        return {number: self.own.kinds(number) for number in range(len(self.parameters))}

    def make_states(self, kinds: Kinds) -> None:
        for part in self.parts.values():
            for number, found in kinds.items():
                part.make_state(number, {key: kind for key, kind in found.items() if key})

    def held(self, owner: int, number: int) -> tuple[int, dict[str, Any]]:
        return self.rows(number, owner, self.size)[0], self.parts[owner].values(number)

    # --- a step ----------------------------------------------------------------------------------------------

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
        """Returns the dtype of each of those that is cut, and any other value itself."""
        parameter = self._sharding.parameters[number]
        state = {"": parameter, **self._sharding.optimizer.state.get(parameter, {})}
        return {key: value.dtype if hasattr(value, "to_local") else value for key, value in state.items()}

    def make_state(self, number: int, kinds: dict[str, Any]) -> None:
        """Makes memory for a parameter's state."""
        parameter = self._sharding.parameters[number]
        self._sharding.optimizer.state[parameter] = state_like(parameter, kinds)


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
        copy_options(groups, self.optimizer.param_groups)
        self.optimizer.step()

    def values(self, number: int) -> dict[str, Any]:
        parameter = self.parameters[number]
        return {"": parameter.detach(), **self.optimizer.state.get(parameter, {})}

    def make_state(self, number: int, kinds: dict[str, Any]) -> None:
        self.optimizer.state[self.parameters[number]] = state_like(self.parameters[number], kinds)
