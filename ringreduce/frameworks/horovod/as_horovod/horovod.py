"""Stands for Horovod's package: ``import horovod.torch`` finds :mod:`ringreduce.horovod.torch`, the same module."""

from __future__ import annotations

import importlib.util
import sys

from ringreduce.doors import Renamed

__version__ = "0.28.1"  # the API's, which programs compare
__path__: list[str] = []  # makes it a package

OURS = "ringreduce.frameworks.horovod"
RENAMED = {
    "common": OURS,
    "common.exceptions": f"{OURS}.internal_error",
    "common.process_sets": f"{OURS}.process_sets",
    "tensorflow.keras": f"{OURS}.keras",
    "tensorflow.keras.callbacks": f"{OURS}.keras.callbacks",
    "tensorflow.mpi_ops": f"{OURS}.tensorflow.operations",
    "torch.mpi_ops": f"{OURS}.torch.operations",
}
KNOWN = ("keras", "tensorflow", "torch")  # the frameworks that are there


def _ours(fullname: str) -> str | None:
    name = fullname.removeprefix("horovod.")
    if name == fullname:
        return None
    ours = RENAMED.get(name, f"{OURS}.{name}")
    if name not in RENAMED and (name.split(".")[0] not in KNOWN or not importlib.util.find_spec(ours)):
        raise ModuleNotFoundError(
            f"ringreduce has no {fullname}; docs/frameworks.md lists what there is of Horovod's API",
            name=fullname,
        )
    return ours


sys.meta_path.insert(0, Renamed(_ours))
