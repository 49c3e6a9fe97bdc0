"""Between TensorFlow's operation for negotiated calls and the driver that runs them.

The operation is in csrc/fronts/tensorflow/negotiated.cpp.

An eager call waits for the others in the thread that makes it, and runs in this thread. In a tf.function, the call is
submitted when its inputs are ready, and no thread waits: the driver's thread completes it. So calls that do not depend
on each other may come in any order on the ranks. Nothing is copied on the way: the engine reads the inputs in
TensorFlow's memory, and writes the results there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from ringreduce.frameworks.horovod.internal_error import HorovodInternalError
from ringreduce.frameworks.horovod.process_sets import ProcessSet
from ringreduce.frameworks.horovod.request import Operation, Request
from ringreduce.frameworks.horovod.tensorflow.kit import NumPyKit, array_at
from ringreduce.frameworks.tensorflow import library
from ringreduce.frameworks.tensorflow.operations import check_compiler

__all__ = ["BridgedCall", "execute"]

OPERATION = "RingreduceNegotiated"


@dataclass(frozen=True)
class BridgedCall(ABC):
    """A call without its tensors. Equal calls share a number, by which TensorFlow knows them."""

    name: str | None
    process_set: ProcessSet

    kind = ""

    @abstractmethod
    def operation(self, kit: NumPyKit, inputs: list[Any]) -> Operation:
        """Returns what the ranks run together. Its results are the call's."""

    @abstractmethod
    def gradients(self, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients of the inputs."""


_numbers: dict[BridgedCall, int] = {}
_calls: list[BridgedCall] = []
_numbering = threading.Lock()  # of both
_raised = threading.local()


def execute(call: BridgedCall, inputs: Sequence[Any], results: Sequence[Any] | None = None) -> list[Any]:
    """Makes a call, or adds it to the graph.

    Args:
        inputs: tensors.
        results: the dtypes of the results. None: those of the inputs.

    Raises:
        HorovodInternalError, ValueError, TypeError: as the call says, from an eager call.
    """
    waits = tf.executing_eagerly()
    if not waits:
        check_compiler(call.kind)
    with _numbering:
        number = _numbers.get(call)
        if number is None:
            number = _numbers[call] = len(_calls)
            _calls.append(call)
    dtypes = [tensor.dtype for tensor in inputs] if results is None else results
    try:
        return list(_operations().ringreduce_negotiated(x=inputs, call=number, waits=waits, R=dtypes))
    except (tf.errors.OpError, RuntimeError):
        error, _raised.error = getattr(_raised, "error", None), None
        if not waits or error is None:
            raise
        raise error from None


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("axes", ctypes.c_int64),
        ("type", ctypes.c_int64),
    )


class _Execution:
    """An execution of the operation, by the address of what TensorFlow needs to know of it."""

    def __init__(self, pending: int) -> None:
        self._pending, self._results = pending, 0

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        number, self._results = self._results, self._results + 1
        lengths = (ctypes.c_int64 * len(shape))(*shape)
        address = _library().ringreduce_tensorflow_result(self._pending, number, len(shape), lengths)
        if not address and 0 not in shape:
            raise MemoryError(f"TensorFlow has no memory for a result of shape {list(shape)}")
        return array_at(address, shape, dtype)

    def finish(self, error: BaseException | None) -> None:
        text = None if error is None else (str(error) or type(error).__name__).encode()
        _library().ringreduce_tensorflow_finish(self._pending, _code_of(error), text)

    def done(self, request: Request) -> None:
        self.finish(request.error)


def _code_of(error: BaseException | None) -> int:
    if isinstance(error, HorovodInternalError):
        return int(tf.errors.ABORTED)
    if isinstance(error, ValueError | TypeError):
        return int(tf.errors.INVALID_ARGUMENT)
    return int(tf.errors.INTERNAL if isinstance(error, Exception) else tf.errors.CANCELLED)


def _begin(number: int, waits: bool, pending: int, count: int, arrays: Any) -> None:
    """Called by TensorFlow. Must not raise, and leads to one finish()."""
    execution = _Execution(pending)
    try:
        call = _calls[number]
        inputs = [_array(arrays[place]) for place in range(count)]
        operation = call.operation(NumPyKit(execution.allocate), inputs)
        driver = call.process_set.driver()
        if not waits:
            driver.interruptible = _interruptible
            driver.submit_named(operation, call.name, False, True, execution.done)
            return
        driver.submit_named(operation, call.name, True).wait()
    except BaseException as error:
        _raised.error = error if waits else None
        execution.finish(error)
    else:
        execution.finish(None)


def _array(found: _Array) -> Any:
    dtype = np.dtype(tf.as_dtype(found.type).as_numpy_dtype)
    return array_at(found.data, found.shape[: found.axes], dtype)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C end the waits of this thread while the main thread waits in TensorFlow for a graph."""
    _library().ringreduce_tensorflow_interruptible(True)
    try:
        yield
    finally:
        _library().ringreduce_tensorflow_interruptible(False)


_BEGIN = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Array)
)
_begin_function = _BEGIN(_begin)  # TensorFlow keeps its address


@functools.cache
def _library() -> ctypes.CDLL:
    functions = library.loaded()[1]
    functions.ringreduce_tensorflow_begin.argtypes = [_BEGIN]
    functions.ringreduce_tensorflow_begin.restype = None
    functions.ringreduce_tensorflow_result.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    ]  # fmt: skip
    functions.ringreduce_tensorflow_result.restype = ctypes.c_void_p
    functions.ringreduce_tensorflow_finish.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
    functions.ringreduce_tensorflow_finish.restype = None
    functions.ringreduce_tensorflow_interruptible.argtypes = [ctypes.c_bool]
    functions.ringreduce_tensorflow_interruptible.restype = None
    functions.ringreduce_tensorflow_begin(_begin_function)
    # Operations with side effects run in the order of the program, except those of this list. These are matched by
    # name; in order, each would begin only after the one before is complete on all ranks.
    listed = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    setattr(auto_control_deps, listed, getattr(auto_control_deps, listed, frozenset()) | {OPERATION})
    return functions


@functools.cache
def _operations() -> Any:
    _library()
    return library.loaded()[0]


def _gradient(operation: Any, *gradients: Any) -> list[Any]:
    call: BridgedCall = _calls[operation.get_attr("call")]
    return call.gradients(list(operation.inputs), list(operation.outputs), list(gradients))


tf.RegisterGradient(OPERATION)(_gradient)
