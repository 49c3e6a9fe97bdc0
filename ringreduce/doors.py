"""Short names of modules: ``import ringreduce.horovod.torch`` finds :mod:`ringreduce.frameworks.horovod.torch`.

Programs import the short names. Both names are the same module, so it does not matter which one a program uses. Type
checkers know only the full names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["DOORS", "Renamed"]

_WINGS = {
    "frameworks": "horovod jax ray tensorflow torchft",
    "studies": "bench model plan simulate study synthesis",
    "training": "balance compression elastic low_communication parameter_server",
}
DOORS = {name: f"{wing}.{name}" for wing, names in _WINGS.items() for name in names.split()}
DOORS |= {"backend": "frameworks.torch", "train": "training.trainer"}


class Renamed(MetaPathFinder, Loader):
    """Finds modules under other names than their own.

    Args:
        name_of: returns the own name of a module that has this name, or None if the name is not of this finder.
    """

    def __init__(self, name_of: Callable[[str], str | None]) -> None:
        self._name_of = name_of

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = self._name_of(fullname)
        real = None if own is None else importlib.util.find_spec(own)
        if real is None:
            return None
        return ModuleSpec(fullname, self, origin=own, is_package=real.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module, which is complete, its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _behind_door(name: str) -> str | None:
    package, _, rest = name.partition(".")
    door, _, inside = rest.partition(".")
    # python -m runs a package's __main__ under the name that it was given.
    if package != "ringreduce" or door not in DOORS or inside == "__main__":
        return None
    return f"{package}.{DOORS[door]}" + (inside and f".{inside}")


sys.meta_path.insert(0, Renamed(_behind_door))
