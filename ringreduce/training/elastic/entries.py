"""The objects of a State: one class for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ringreduce.training.data_parallel.sync_batch_norm import SyncBatchNorm
from ringreduce.training.elastic.default_process_group import init_process_group
from ringreduce.training.elastic.entry import Entry, Membership
from ringreduce.training.elastic.fully_shard import FullyShard, fill_buffers
from ringreduce.training.elastic.trees import described
from ringreduce.training.foundation.part import copy_options, options
from ringreduce.training.low_communication.outer import Outer

__all__ = ["OptimizerEntry", "OuterEntry", "entry_of"]


class ModuleEntry(Entry):
    """A model, or its wrapper. Steps change its buffers; its parameters only change when a step is applied."""

    def description(self) -> list[str]:
        return [*super().description(), *(f"{self.name}: {line}" for line in described(self.own_tensors()))]

    @property
    def _module(self) -> Any:
        return self.value.module if hasattr(self.value, "module") else self.value

    def own_tensors(self) -> dict[str, Any]:
        found = self._module.state_dict(keep_vars=True)
        return {name: value for name, value in found.items() if torch.is_tensor(value)}

    def tree(self) -> Any:
        return dict(self._module.state_dict(keep_vars=True))

    def restore(self, tree: Any, shards: list[Any]) -> None:
        self._module.load_state_dict(tree)

    def load(self, tree: Any) -> None:
        own = self.own_tensors()
        if any(value is not own.get(name) for name, value in tree.items()):
            self._module.load_state_dict(tree)

    def keep(self) -> Any:
        return [buffer.clone() for buffer in self._module.buffers()]

    def put_back(self, kept: Any) -> None:
        fill_buffers(self._module, kept)

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        norms = [part for part in self.value.modules() if isinstance(part, SyncBatchNorm)]
        own = now.comm.split(0) if norms else None  # not behind buckets of gradients
        for norm in norms:
            norm.comm = own
        for part in self.value.modules():
            if hasattr(part, "regroup"):
                part.regroup(now.comm)
        return None


class DistributedEntry(ModuleEntry):
    """torch's DistributedDataParallel, whose process group is recreated."""

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        init_process_group(now.comm)
        self.value.process_group = dist.group.WORLD
        # What copying does. Its own _update_process_group keeps the buckets, which newcomers have otherwise.
        hooks, self.value._comm_hooks = self.value._comm_hooks, []
        self.value.__setstate__(self.value.__getstate__())
        for hook, state in hooks:
            if hasattr(state, "regroup"):
                state.regroup(now.comm)
            self.value.register_comm_hook(state, hook)
        return None


class OptimizerEntry(Entry):
    """A torch optimizer. Its state only changes when a step is applied."""

    def description(self) -> list[str]:
        groups = [len(group["params"]) for group in self.value.param_groups]
        return [*super().description(), f"{self.name}: groups of {groups} parameters"]

    def tree(self) -> Any:
        return self.value.state_dict()

    def load(self, tree: Any) -> None:
        self.value.load_state_dict(tree)

    def keep(self) -> Any:
        return None

    def put_back(self, kept: Any) -> None:
        # Not zero_grad(): that of a ShardedOptimizer would end a failed backward pass with the others first.
        for group in self.value.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class ShardedEntry(OptimizerEntry):
    """A ShardedOptimizer: every rank has a part of the state. All ranks share the options of the groups."""

    def description(self) -> list[str]:
        return [*super().description(), *(f"{self.name}: {line}" for line in self.value.described())]

    def tree(self) -> Any:
        return self.value.group_options()

    def load(self, tree: Any) -> None:
        self.value.load_group_options(tree)

    def shard(self) -> Any:
        return self.value.shard()

    def restore(self, tree: Any, shards: list[Any]) -> None:
        self.load(tree)
        self.value.load_shards(shards)

    def mend(self, now: Membership) -> None:
        if now.torn:
            self.value.mend(now.comm, now.before, now.size_before, now.torn)

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        if now.comm is self.value.comm:
            return None
        prepared: Callable[[], None] = self.value.prepare_regroup(now.comm, now.before, now.size_before)
        return prepared


class FullyShardEntry(Entry):
    """An FSDP2 model and its optimizer. All ranks share the buffers and the options of the parameter groups."""

    def description(self) -> list[str]:
        parameters = {str(number): each for number, each in enumerate(self.value.sharding.parameters)}
        return [*super().description(), *(f"{self.name}: parameter {line}" for line in described(parameters))]

    def tree(self) -> Any:
        groups = [options(group) for group in self.value.optimizer.param_groups]
        return {"buffers": list(self.value.model.buffers()), "groups": groups}

    def load(self, tree: Any) -> None:
        fill_buffers(self.value.model, tree["buffers"])
        copy_options(tree["groups"], self.value.optimizer.param_groups)

    def keep(self) -> Any:
        return [buffer.clone() for buffer in self.value.model.buffers()]

    def put_back(self, kept: Any) -> None:
        fill_buffers(self.value.model, kept)
        self.value.optimizer.zero_grad(set_to_none=True)

    def shard(self) -> Any:
        return self.value.shard()

    def restore(self, tree: Any, shards: list[Any]) -> None:
        self.load(tree)
        self.value.load_shards(shards)

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        init_process_group(now.comm)
        prepared: Callable[[], None] = self.value.prepare(now.comm, now.before, now.size_before)
        return prepared


class ObjectEntry(Entry):
    """Any other object with state_dict and load_state_dict; :meth:`regroup`, if it has one, gets a new group."""

    def tree(self) -> Any:
        return self.value.state_dict()

    def load(self, tree: Any) -> None:
        self.value.load_state_dict(tree)

    def prepare(self, now: Membership) -> Callable[[], None] | None:
        if hasattr(self.value, "regroup"):
            self.value.regroup(now.comm)
        return None


class OuterEntry(ObjectEntry):
    """A method of ringreduce.low_communication. Undoing a step restores the parameters of its last synchronisation."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        value.regroup(value.comm)  # from now on it keeps what it needs to return

    def description(self) -> list[str]:
        return [*super().description(), *(f"{self.name}: {line}" for line in self.value.described())]

    def tree(self) -> Any:
        return self.value.common_state()

    def shard(self) -> Any:
        return list(self.value.sent)  # of tensors that never change

    def keep(self) -> Any:
        return super().keep(), self.shard()

    def put_back(self, kept: Any) -> None:
        tree, sent = kept
        self.load(tree)
        self.value.sent = sent

    def restore(self, tree: Any, shards: list[Any]) -> None:
        self.load(tree)
        self.value.take(shards)

    def restored(self) -> None:
        self.value.regroup(self.value.comm)


class TensorEntry(Entry):
    """A tensor, which steps change in place."""

    def description(self) -> list[str]:
        return described(self.own_tensors())

    def own_tensors(self) -> dict[str, Any]:
        return {self.name: self.value}

    def tree(self) -> Any:
        return self.value.detach()

    def load(self, tree: Any) -> None:
        if tree.data_ptr() != self.value.data_ptr():
            with torch.no_grad():
                self.value.copy_(tree)

    def keep(self) -> Any:
        return self.value.detach().clone()


class ValueEntry(Entry):
    """A plain value that can be pickled. ``state.name = value`` replaces it."""

    def description(self) -> list[str]:
        return [f"{self.name}: a value"]

    def tree(self) -> Any:
        return self.value

    def load(self, tree: Any) -> None:
        self.value = tree


def entry_of(name: str, value: Any) -> Entry:
    """Returns the entry for an object."""
    if isinstance(value, FullyShard):
        return FullyShardEntry(name, value)
    if isinstance(value, torch.nn.parallel.DistributedDataParallel):
        return DistributedEntry(name, value)
    if isinstance(value, torch.nn.Module):
        return ModuleEntry(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return (ShardedEntry if hasattr(value, "prepare_regroup") else OptimizerEntry)(name, value)
    if isinstance(value, Outer):
        return OuterEntry(name, value)
    if torch.is_tensor(value):
        return TensorEntry(name, value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return ObjectEntry(name, value)
    return ValueEntry(name, value)
