"""The compiled part: TensorFlow's operations, built on first use for the installed TensorFlow.

See build/on_first_use.py. It needs a C++ compiler; TensorFlow brings its headers. The operations use TensorFlow's C
interface, so they depend neither on Python's version nor on TensorFlow's compiler.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module
from typing import Any

import tensorflow as tf

from ringreduce.build import on_first_use as building
from ringreduce.build.on_first_use import Recipe
from ringreduce.requirement import check_version


def check() -> None:
    """Raises RuntimeError if this TensorFlow is too old. 2.16 is the first with Keras 3."""
    check_version("ringreduce.tensorflow", "tensorflow", tf.__version__, "2.16", "tensorflow-cpu")


def recipe() -> Recipe:
    """Returns how to build the library."""
    sysconfig = tf.sysconfig
    return building.part_for(
        "tensorflow",
        "TensorFlow",
        f"tensorflow {tf.__version__}",
        sysconfig.get_include(),
        (*sysconfig.get_link_flags(), f"-Wl,-rpath,{sysconfig.get_lib()}"),
    )


@functools.cache
def loaded() -> tuple[Any, ctypes.CDLL]:
    """Loads the library. Returns the module of its operations, and its functions.

    Raises:
        RuntimeError: TensorFlow is too old; there is no compiler, or it failed; or the library does not fit.
    """
    check()
    import_module("ringreduce._engine")  # this loads the engine
    made = building.built(recipe())
    try:
        operations = tf.load_op_library(str(made))
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise RuntimeError(
            f"ringreduce: its part for TensorFlow does not fit this tensorflow {tf.__version__} ({reason}). Install "
            f"tensorflow-cpu anew, and remove {made.parent}"
        ) from error
    return operations, ctypes.CDLL(str(made))
