"""The compiled part: XLA's custom calls, built on first use for the installed jaxlib.

See build/on_first_use.py. It needs a C++ compiler; jaxlib brings its header. It does not depend on Python's version.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import KeysView
from importlib import import_module

import jax
import jaxlib

from ringreduce.build import on_first_use as building
from ringreduce.build.on_first_use import Recipe
from ringreduce.communicator import Communicator

OLDEST = (0, 6)  # the first in which XLA passes tokens to custom calls on the CPU, and jax.ffi is public
TARGETS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv", "sendrecv",
)  # fmt: skip


def check() -> None:
    """Raises RuntimeError if this jax is too old."""
    found = re.match(r"(\d+)\.(\d+)", jax.__version__)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(
            f"ringreduce.jax needs jax {oldest} or later; this is jax {jax.__version__}: pip install -U jax"
        )


def recipe() -> Recipe:
    """Returns how to build the library."""
    return building.part_for("jax", "JAX", f"jaxlib {jaxlib.__version__}", jax.ffi.include_dir())


@functools.cache
def loaded() -> ctypes.CDLL:
    """Loads the library, and registers its calls with XLA.

    Raises:
        RuntimeError: jax is too old; there is no compiler, or it failed.
    """
    check()
    import_module("ringreduce._engine")  # this loads the engine
    library = ctypes.CDLL(str(building.built(recipe())))
    for name in TARGETS:
        handler = jax.ffi.pycapsule(getattr(library, f"ringreduce_jax_{name}"))
        jax.ffi.register_ffi_target(f"ringreduce_{name}", handler, platform="cpu")
    library.ringreduce_jax_number.argtypes = [ctypes.c_void_p]
    library.ringreduce_jax_number.restype = ctypes.c_int64
    return library


_numbers: dict[Communicator, int] = {}


def known() -> KeysView[Communicator]:
    """Returns the communicators that have a number."""
    return _numbers.keys()


def number_of(comm: Communicator) -> int:
    """Returns the number by which compiled programs know a communicator, which then lives as long as the process."""
    if comm not in _numbers:
        _numbers[comm] = loaded().ringreduce_jax_number(comm._c.address)
    return _numbers[comm]
