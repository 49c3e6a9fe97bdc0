"""Stands for Horovod's package: ``import horovod.torch`` finds :mod:`ringreduce.horovod.torch`, the same module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.28.1"  # the API's, which programs compare
__path__: list[str] = []  # makes it a package

OURS = "ringreduce.horovod"
RENAMED = {
    "common": OURS,
    "common.exceptions": f"{OURS}.errors",
    "common.process_sets": f"{OURS}.process_sets",
    "tensorflow.keras": f"{OURS}.keras",
    "tensorflow.keras.callbacks": f"{OURS}.keras.callbacks",
    "tensorflow.mpi_ops": f"{OURS}.tensorflow.operations",
    "torch.mpi_ops": f"{OURS}.torch.operations",
}
KNOWN = ("keras", "tensorflow", "torch")  # the frameworks that are there


class Finder(MetaPathFinder, Loader):
    """Finds the modules of Horovod's names in ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.removeprefix("horovod.")
        if name == fullname:
            return None
        ours = RENAMED.get(name, f"{OURS}.{name}")
        if name not in RENAMED and (name.split(".")[0] not in KNOWN or not importlib.util.find_spec(ours)):
            raise ModuleNotFoundError(
                f"ringreduce has no {fullname}; docs/frameworks.md lists what there is of Horovod's API",
                name=fullname,
            )
        return ModuleSpec(fullname, self, origin=ours)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module, which is complete, its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, Finder())
