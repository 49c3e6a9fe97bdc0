"""torch's classes, made to choose their tests as for Gloo and to run them with another backend.

The decorators in torch's module decide while it is imported, from the environment; the bodies look at a global
of the module and at lists of names. So the module is imported as for Gloo, and the rest is changed afterwards.
"""

from __future__ import annotations

import functools
import importlib
import os
from datetime import timedelta
from typing import Any
from unittest import mock

GLOO = "gloo"
AS_GLOO = "as-gloo"  # ours, which gets what is asked of Gloo (RINGREDUCE_AS)
CONTROL = "renamed"  # Gloo under another name: what fails with it, fails because of a name
PATIENCE = 40  # seconds for a rank to come to torch's barrier of files; its 10 are few where much else runs
# Tests on CPU tensors that torch runs with MPI only; other backends can do it by now.
_FOR_MPI = ("Only MPI supports CPU all_to_all_single", "Only MPI supports all_to_all")


class _Name(str):
    """The name of a backend, which passes for another name where a body asks for that one."""

    also: str

    def __new__(cls, name: str, also: str) -> _Name:
        made = super().__new__(cls, name)
        made.also = also
        return made

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == self.also

    def __ne__(self, other: object) -> bool:
        return not self == other


class Cases:
    """The tests of one world size, for one backend. Must be made before torch is imported."""

    def __init__(self, backend: str, world: int) -> None:
        self.backend, self.world = backend, world
        # file:// has test_barrier_timeout_global run, too; a rank puts the rest of the address in.
        os.environ.update(BACKEND=GLOO, WORLD_SIZE=str(world), INIT_METHOD="file://", MASTER_ADDR="127.0.0.1")
        self.torch = importlib.import_module("torch")
        folder = "torch.testing._internal"
        common = importlib.import_module(f"{folder}.common_distributed")
        self.skips = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}
        self.error_code = common.MultiProcessTestCase.TEST_ERROR_EXIT_CODE
        self.module = importlib.import_module(f"{folder}.distributed.distributed_test")
        self._check_backend()
        self._classes = {"": self._main_class(), **self._classes_with_calls(common, folder)}
        self.names = [
            f"{prefix}{name}"
            for prefix, cls in self._classes.items()
            for name in sorted(dir(cls))
            if name.startswith("test")
        ]

    def find(self, name: str) -> tuple[type, str]:
        """The class of a test, and its name there."""
        prefix, _, rest = name.rpartition(".")
        return self._classes[f"{prefix}." if prefix else ""], rest

    def static_skips(self) -> dict[str, str]:
        """Why tests are skipped by a decorator, as unittest knows it."""
        found = {}
        for name in self.names:
            method = getattr(*self.find(name))
            if getattr(method, "__unittest_skip__", False):
                found[name] = method.__unittest_skip_why__
        return found

    def _check_backend(self) -> None:
        dist = self.torch.distributed
        if self.backend == CONTROL:

            def gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
                return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

            dist.Backend.register_backend(CONTROL, gloo, devices=["cpu"])
        if not dist.is_backend_available(self.backend):
            raise RuntimeError(f"torch.distributed knows no backend {self.backend!r}")

    def _main_class(self) -> type:
        tests = self.module.DistributedTest._DistTestBase
        for method in vars(tests).values():
            if getattr(method, "__unittest_skip_why__", "") in _FOR_MPI:
                del method.__unittest_skip__
        return type("TestDistBackend", (self.module.TestDistBackend, tests), {})

    def _classes_with_calls(self, common: Any, folder: str) -> dict[str, type]:
        """DDP whose backward passes come by remote procedure calls, in threads of the RPC agent."""
        module = importlib.import_module(f"{folder}.distributed.ddp_under_dist_autograd_test")
        fixture = importlib.import_module(f"{folder}.distributed.rpc.tensorpipe_rpc_agent_test_fixture")
        mixed_in = (fixture.TensorPipeRpcAgentTestFixture, common.MultiProcessTestCase)
        classes = {"ddp.": type("DdpComparison", (module.DdpComparisonTest, *mixed_in), {})}
        # Its numbers of ranks are constants; the functions look them up when they run.
        module.NUM_TRAINERS = self.world
        if self.world >= 4:  # a master and a remote worker besides
            classes["ddp_under_rpc."] = type("DdpUnderRpc", (module.DdpUnderDistAutogradTest, *mixed_in), {})
        return classes

    def prepare(self, name: str, init_method: str) -> type:
        """In a rank: puts the backend in Gloo's place. Returns the class of the test."""
        cls, _ = self.find(name)
        self.module.INIT_METHOD = init_method
        self.module.Barrier.sync.__func__.__defaults__ = (None, PATIENCE)
        if name.startswith("ddp_under_rpc."):
            self._fewer_trainers()
        is_plug_in = self.backend != GLOO or os.environ.get("RINGREDUCE_AS") == GLOO
        if name == "test_ddp_logging_data_cpu" and is_plug_in:
            # compares the name with what DDP writes down for every plug-in
            self.torch.distributed.get_backend = lambda group=None: _Name(self.backend, also="custom")
        if self.backend == GLOO:
            return cls
        # Where a body asks for Gloo it only chooses CPU tensors, and would leave a variable unset for other names.
        self.module.BACKEND = _Name(self.backend, also=GLOO)
        if self.backend != CONTROL:
            for kind in ("", "CUDA_", "SEND_RECV_"):
                getattr(self.module, f"{kind}PROFILING_SUPPORTED_BACKENDS").append(self.backend)
        self._patch_distributed(explicit=not name.startswith("test"))
        return cls

    def _fewer_trainers(self) -> None:
        module = importlib.import_module("torch.testing._internal.distributed.ddp_under_dist_autograd_test")
        module.NUM_TRAINERS = self.world - 2
        module.TRAINER_RANKS = list(range(module.NUM_TRAINERS))
        module.REMOTE_WORKER_RANK, module.MASTER_RANK = module.NUM_TRAINERS, module.NUM_TRAINERS + 1
        module.WORLD_SIZE = self.world

    def _patch_distributed(self, explicit: bool) -> None:
        """Lets dist.monitored_barrier reach our backend; with explicit, groups asked of Gloo by name are ours."""
        dist = self.torch.distributed
        c10d = dist.distributed_c10d
        original, begin = dist.monitored_barrier, dist.init_process_group

        @functools.wraps(original)
        def monitored_barrier(*args: Any, **kwargs: Any) -> Any:
            # It refuses every backend but Gloo by name; each group can be asked for one all the same.
            with mock.patch.object(c10d, "get_backend", lambda group=None: c10d.Backend.GLOO):
                return original(*args, **kwargs)

        dist.monitored_barrier = monitored_barrier
        if explicit:
            dist.init_process_group = lambda *args, **kwargs: begin(
                *args, **{**kwargs, "backend": self.backend}
            )
