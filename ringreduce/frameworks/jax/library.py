"""The compiled part: XLA's custom calls, built on first use for the installed jaxlib.

See build/on_first_use.py. It needs a C++ compiler; jaxlib brings its header. It does not depend on Python's version.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module

import jax
import jaxlib

from ringreduce.build import on_first_use as building
from ringreduce.build.on_first_use import Recipe
from ringreduce.frameworks.traced.call import CALLS
from ringreduce.requirement import check_version


def check() -> None:
    """Raises RuntimeError if this jax is too old.

    0.6 is the first in which XLA passes tokens to custom calls on the CPU, and jax.ffi is public.
    """
    check_version("ringreduce.jax", "jax", jax.__version__, "0.6")


def recipe() -> Recipe:
    """Returns how to build the library."""
    return building.part_for("jax", "JAX", f"jaxlib {jaxlib.__version__}", jax.ffi.include_dir())


@functools.cache
def load() -> None:
    """Loads the library, and registers its calls with XLA.

    Raises:
        RuntimeError: jax is too old; there is no compiler, or it failed.
    """
    check()
    import_module("ringreduce._engine")  # this loads the engine
    library = ctypes.CDLL(str(building.built(recipe())))
    for name in CALLS:
        handler = jax.ffi.pycapsule(getattr(library, f"ringreduce_jax_{name}"))
        jax.ffi.register_ffi_target(f"ringreduce_{name}", handler, platform="cpu")
