"""Operators that programs define for reductions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ringreduce import _engine
from ringreduce._engine import values
from ringreduce.annotations import Array
from ringreduce.errors import OpFailed

__all__ = ["UserOp", "op"]


def own_exception(ended: BaseException, raised: list[BaseException]) -> BaseException:
    """Returns what a call raises on a rank whose operator has raised something: that, if it was this call's.

    Args:
        ended: the error of the group, which becomes the cause of an exception that has none.
    """
    if not raised or not isinstance(ended, OpFailed):
        return ended
    first = raised[0]
    if first.__cause__ is None and first.__context__ is None:
        first.__cause__ = ended
    return first


class UserOp:
    """An operator that :func:`op` made. Reductions take it as ``op``.

    Attributes:
        function: the function that combines two blocks.
        commutative: whether a op b equals b op a.
        name: the name by which ranks agree on it.
    """

    def __init__(self, function: Any, commutative: bool, name: str) -> None:
        self.function = function
        self.commutative = commutative
        self.name = name
        self._address = _address_of(function)
        self._engines: dict[np.dtype[Any] | None, _engine.UserOp] = {}

    def __repr__(self) -> str:
        return f"ringreduce.op({self.name!r}, commutative={self.commutative})"

    def __reduce__(self) -> tuple[Any, ...]:
        return UserOp, (self.function, self.commutative, self.name)

    def engine(self, dtype: np.dtype[Any] | None, raised: list[BaseException]) -> _engine.UserOp:
        """Returns the engine's operator for a call.

        Args:
            dtype: of elements that the library does not know. None: it does.
            raised: takes what a function in Python raises in this call; ranks in other threads may make others.
        """
        size, words = (dtype.itemsize, str(dtype)) if dtype is not None else (0, "")
        if self._address is None:
            caller = _Caller(self, dtype, raised)
            return _engine.op_in_python(self.name, self.commutative, size, words, caller)
        if dtype not in self._engines:
            self._engines[dtype] = _engine.op_in_c(self.name, self.commutative, size, words, self._address)
        return self._engines[dtype]


class _Caller:
    """Calls an operator's function for the engine."""

    def __init__(self, own: UserOp, dtype: np.dtype[Any] | None, raised: list[BaseException]) -> None:
        self._own = own
        self._dtype = dtype
        self._raised = raised

    def __call__(self, left: memoryview, right: memoryview, dtype: str) -> str | None:
        """Leaves the result in ``right``. Returns what is wrong, if anything."""
        try:
            self._combine(left, right, _dtype_named(dtype) if self._dtype is None else self._dtype)
        except BaseException as error:  # the engine cannot let it pass
            self._raised.append(error)
            return ": ".join((type(error).__name__, " ".join(str(error).split()))).removesuffix(": ")
        return None

    def _combine(self, left: memoryview, right: memoryview, dtype: np.dtype[Any]) -> None:
        a, b = np.frombuffer(left, dtype), np.frombuffer(right, dtype)
        result = self._own.function(a, b)
        if result is None or result is b:
            return
        result = np.asanyarray(result)
        if result.shape != b.shape:
            raise ValueError(
                f"the op returned an array of shape {result.shape} for blocks of shape {b.shape}"
            )
        np.copyto(b, result, casting="same_kind")


def op(function: Any, *, commutative: bool, name: str | None = None) -> UserOp:
    """Makes an operator for reductions: all_reduce, reduce_scatter, reduce, scan and exscan take it as ``op``.

    The operator must be associative. If it does not commute, the values of the ranks are combined in rank order,
    ``x0 op x1 op x2``, in some grouping, and only algorithms that keep this order can be used.

    Elements may have any dtype of the library, and in NumPy arrays any other dtype of a fixed size without Python
    objects, such as a structured one. exscan leaves rank 0's array as it is, because the operator has no known value
    that changes nothing. Wire formats, ``factor`` and arrays in GPU memory cannot be used.

    Args:
        function: one of

            - a function of two one-dimensional NumPy arrays, a and b. It returns a op b, as an array or, written
              into b, as b or None. It must not write to a, nor keep either of them. It is called for blocks of up to
              64 KiB, with the GIL held, in the thread that calls the collective or in the progress thread.
            - a function pointer of ctypes, or an object with an ``address``, such as a cfunc of numba, for
              ``void function(const T *a, T *b, size_t n)``, which writes a[i] op b[i] to b[i]. It is called without
              the GIL. The library cannot check that T is the arrays' dtype.

            If a Python function raises an exception, the call on that rank raises the same exception. The other
            ranks raise :class:`~ringreduce.errors.OpFailed`, which names the rank, the operator and the exception.
            So do all later calls: the communicator cannot be used any more, and ``shrink()`` makes another.
        commutative: whether a op b equals b op a, whatever the values.
        name: the name by which the ranks agree on the operator. None takes the function's module and name. Ranks that
            pass operators of different names raise :class:`~ringreduce.errors.MismatchError`.
    """
    values.flag(commutative, "commutative")
    if not callable(function) and _address_of(function) is None:
        raise TypeError(f"function must be a function or a function pointer, not {type(function).__name__}")
    if name is None:
        name = _name_of(function)
    return UserOp(function, commutative, values.text(name, "name"))


def _name_of(function: Any) -> str:
    # numba's cfunc keeps the Python function, and partial() what it calls.
    named = getattr(function, "_pyfunc", None) or getattr(function, "func", None) or function
    found = getattr(named, "__qualname__", None) or getattr(named, "__name__", None)
    if found is None:
        raise ValueError("function has no name: pass one as name")
    return f"{getattr(named, '__module__', None) or ''}.{found}".lstrip(".")


def _address_of(function: Any) -> int | None:
    """Returns the address of a function pointer, or None."""
    if isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return ctypes.cast(function, ctypes.c_void_p).value
    address = getattr(function, "address", None)
    return address if isinstance(address, int) else None


def _dtype_named(name: str) -> np.dtype[Any]:
    """Returns a dtype of the library."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # which has the others

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def foreign_dtype(x: Array | None) -> np.dtype[Any] | None:
    """Returns the dtype of an array if the library does not know it, but a program's operator may."""
    if not isinstance(x, np.ndarray):
        return None
    dtype: np.dtype[Any] = x.dtype
    other_number = dtype.type in (np.longdouble, np.clongdouble)
    if dtype.type.__module__ != "numpy" or (dtype.kind not in "VSUMm" and not other_number):
        return None
    if dtype.hasobject or dtype.itemsize == 0:
        raise TypeError(f"x has dtype {dtype}: an op needs elements of a fixed size without Python objects")
    return dtype


def as_bytes(x: Any, dtype: np.dtype[Any]) -> Any:
    """Returns the array's memory as bytes."""
    if x is None:
        return None
    if not isinstance(x, np.ndarray) or x.dtype != dtype:
        raise ValueError(f"x has dtype {dtype}, but out has {getattr(x, 'dtype', type(x).__name__)}")
    if not x.flags.c_contiguous:
        raise ValueError(f"arrays of dtype {dtype} must be contiguous")
    return np.ndarray(x.nbytes, np.uint8, x) if x.nbytes else np.empty(0, np.uint8)
