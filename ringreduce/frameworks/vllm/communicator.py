"""What vLLM's tensor and pipeline parallel groups call on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, GatherOptions, ProcessGroup
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from ringreduce.frameworks import torch as backend

__all__ = ["Communicator"]

_SHARED_MEMORY = ("tp", "pp")  # what the names of the groups begin with that vLLM's own operation serves


class Communicator(CpuCommunicator):  # type: ignore[misc]
    """Calls the group's backend, in the place of vLLM's own operation in shared memory and of torch.distributed.

    Of a group that ringreduce does not serve, it is vLLM's.
    """

    def __init__(
        self,
        cpu_group: ProcessGroup,
        device: torch.device | None = None,
        device_group: ProcessGroup | None = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        found = (device_group or cpu_group)._get_backend(torch.device("cpu"))
        ours = backend.is_ours(found)
        # vLLM chooses its operation by the name.
        shown = "" if ours and unique_name.startswith(_SHARED_MEMORY) else unique_name
        super().__init__(cpu_group, device, device_group, shown, use_all2all)
        self.unique_name = unique_name
        if ours:
            self.dist_module = _Calls(found)


class _Calls:
    """The functions of torch.distributed that a CpuCommunicator calls, with nothing between them and the backend.

    torch.distributed checks arguments and dispatches an operator first, which takes longer than a small call. A model
    that torch.compile traces calls torch.distributed, because Dynamo cannot trace a backend's methods.
    """

    def __init__(self, found: Any) -> None:
        self._backend = found
        self._sum, self._all, self._to = AllreduceOptions(), AllgatherOptions(), GatherOptions()
        for options in (self._sum, self._all, self._to):
            options.asyncOp = False

    def all_reduce(self, tensor: torch.Tensor, group: ProcessGroup) -> None:
        if torch.compiler.is_compiling():
            torch.distributed.all_reduce(tensor, group=group)
        else:
            self._backend.allreduce([tensor], self._sum).wait()

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor, group: ProcessGroup) -> None:
        if torch.compiler.is_compiling():
            torch.distributed.all_gather_into_tensor(output, tensor, group=group)
        else:
            self._backend._allgather_base(output, tensor, self._all).wait()

    def gather(
        self, tensor: torch.Tensor, outputs: list[torch.Tensor] | None, dst: int, group: ProcessGroup
    ) -> None:
        self._to.rootRank = torch.distributed.get_group_rank(group, dst)
        self._backend.gather([outputs] if outputs else [], [tensor], self._to).wait()
