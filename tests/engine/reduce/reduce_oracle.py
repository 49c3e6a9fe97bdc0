"""What combining must give, computed by NumPy and ml_dtypes."""

import functools

import ml_dtypes
import numpy as np

from ringreduce import _engine

engine = _engine.reduce

NUMPY = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
FLOATS = [name for name in NUMPY if "float" in name]
PARTS = {"complex64": "float32", "complex128": "float64"}
INTEGERS = [name for name in NUMPY if "int" in name]
SMALL_FLOATS = FLOATS[2:]
SUPPORTED = [(d, op) for d in engine.dtypes() for op in engine.ops() if engine.supports(d, op)]
NAN_BITS = {
    "float64": 0x7FF8000000000000,
    "float32": 0x7FC00000,
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7E,
}


def bits(array):
    """The array's elements (of complex numbers, their parts) as unsigned integers."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.real.dtype.itemsize if array.dtype.kind == 'c' else array.dtype.itemsize}")


def bytes_of(array):
    return array.view(np.uint8)


def random_bits(dtype, count, rng):
    """Elements of any bit pattern: every kind of NaN, infinity, zero and subnormal; for bool only 0 and 1."""
    kind = np.dtype(NUMPY[dtype])
    raw = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8)
    return (raw & 1 if dtype == "bool" else raw).view(kind)


def random_values(dtype, count, rng):
    """Like random_bits for integers; floats near enough to each other that their sums round."""
    if dtype in PARTS:
        return random_values(PARTS[dtype], 2 * count, rng).view(NUMPY[dtype])
    if dtype not in FLOATS:
        return random_bits(dtype, count, rng)
    values = rng.standard_normal(count) * np.exp2(rng.integers(-6, 7, count))
    return values.astype(np.float32).astype(NUMPY[dtype])


def special_values(dtype):
    """Values on which float operators differ; all pairs of them are worth trying."""
    kind = NUMPY[dtype]
    info = ml_dtypes.finfo(kind)
    values = [0.0, -0.0, 1.0, -1.0, 1.5, np.nan, -np.nan, np.inf, -np.inf]
    values += [info.max, info.min, info.smallest_normal, info.smallest_subnormal, -info.smallest_subnormal]
    return np.array([float(v) for v in values]).astype(kind)


def expected(dtype, op, sources, scale=1.0):
    """sources combined from the first on; NaN as the one pattern that the kernels return."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return _of_bools(op, sources)
        if dtype in PARTS:
            return _of_complex(dtype, op, sources, scale)
        if dtype in FLOATS:
            return _of_floats(dtype, op, sources, scale)
        return _of_integers(op, sources, scale)


def _of_bools(op, sources):
    join = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "bxor": np.logical_xor}
    return functools.reduce(join.get(op, np.logical_and), sources)


def _of_integers(op, sources, scale):
    kind = sources[0].dtype
    join = {
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    result = functools.reduce(join.get(op, np.add), sources)
    if op == "avg":
        ranks = kind.type(round(1 / scale))
        negative = result < 0
        # Floor division, turned into cutting: one more where there is a negative remainder.
        floor = result // ranks
        result = floor + (negative & (floor * ranks != result)).astype(kind)
    return result.astype(kind)


def _of_complex(dtype, op, sources, scale):
    parts = [s.view(NUMPY[PARTS[dtype]]) for s in sources]
    if op != "prod":
        return _of_floats(PARTS[dtype], op, parts, scale).view(NUMPY[dtype])
    real, imag = parts[0][::2], parts[0][1::2]
    for part in parts[1:]:
        a, b = part[::2], part[1::2]
        real, imag = real * a - imag * b, real * b + imag * a
    result = np.empty_like(parts[0])
    result[::2], result[1::2] = real, imag
    return with_one_nan(PARTS[dtype], result).view(NUMPY[dtype])


def _min(a, b):
    """NaN if either is, and -0 below +0."""
    smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, smaller).astype(a.dtype)


def _max(a, b):
    return -_min(-a, -b)


def _of_floats(dtype, op, sources, scale):
    wide = np.float64 if dtype == "float64" else np.float32
    join = {"prod": np.multiply, "min": _min, "max": _max}.get(op, np.add)
    result = functools.reduce(join, [s.astype(wide) for s in sources])
    if op == "avg":
        result = result * wide(scale)
    return with_one_nan(dtype, result.astype(NUMPY[dtype]))


def with_one_nan(dtype, array):
    array = array.copy()
    with np.errstate(all="ignore"):
        array.view(f"u{array.dtype.itemsize}")[np.isnan(array)] = NAN_BITS[dtype]
    return array


def combine(dtype, op, sources, destinations=1, scale=1.0, isa=""):
    """Runs the kernel into fresh destinations; returns them."""
    results = [np.zeros_like(sources[0]) for _ in range(destinations)]
    engine.combine(dtype, op, [bytes_of(r) for r in results], [bytes_of(s) for s in sources], scale, isa)
    return results


def assert_same_bits(actual, wanted, context=""):
    """Equal bit for bit; shows the first few differences as numbers."""
    differs = np.flatnonzero(bits(actual) != bits(wanted))
    assert differs.size == 0, (context, differs[:5], actual[differs[:5]], wanted[differs[:5]])
