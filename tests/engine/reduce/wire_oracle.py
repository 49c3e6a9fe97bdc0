"""What the wire formats must give, computed by NumPy and ml_dtypes."""

import ml_dtypes
import numpy as np

from ringreduce import _engine

engine = _engine.reduce

BLOCK = 256
WIRES = ["bf16", "fp16", "int8", "fp8"]
CASTS = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


COUNTS = [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000, 5003]
LARGEST = float(np.finfo(np.float32).max)


def values_of(kind, count, rng):
    if kind == "any bits":
        return rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    values = rng.standard_normal(count)
    if kind == "wide":  # every block has its own size, and elements of very different ones
        values = values * np.exp2(rng.integers(-30, 30, count) + rng.integers(-90, 90) * 1.0)
    elif kind == "ties":
        values = np.round(values * 64) / 2
    elif kind == "tiny":
        values = values * 1e-38
    elif kind == "huge":
        values = values * 1e38
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


KINDS = ["normal", "wide", "ties", "tiny", "huge", "any bits"]


def encode(wire, values, isa=""):
    encoded = np.zeros(engine.encoded_bytes(wire, values.size), np.uint8)
    engine.encode(wire, encoded, values.view(np.uint8), isa)
    return encoded


def decode(wire, encoded, count, isa=""):
    values = np.zeros(count, np.float32)
    engine.decode(wire, values.view(np.uint8), encoded, isa)
    return values


def through(wire, values, isa=""):
    """Q(values), by the kernels."""
    return decode(wire, encode(wire, values, isa), values.size, isa)


def _int8_scale(largest):
    bits = np.float32(largest / np.float32(127)).view(np.uint32)
    bits = (bits + np.uint32(0x80)) & np.uint32(0xFFFFFF00)
    top = np.float32(np.finfo(np.float32).max / np.float32(127)).view(np.uint32) & np.uint32(0xFFFFFF00)
    return np.clip(bits.view(np.float32), np.float32(2.0**-126), top.view(np.float32))


def _fp8_scale(largest):
    mantissa, exponent = np.frexp(largest)  # in [0.5, 1)
    power = int(exponent) - 9 + int(mantissa > 0.875) if largest > 0 else -126
    return np.float32(2.0 ** np.clip(power, -117, 119))


def scale_of(wire, block):
    """The scale of a block's finite values."""
    finite = np.abs(block[np.isfinite(block)])
    return {"int8": _int8_scale, "fp8": _fp8_scale}[wire](finite.max(initial=np.float32(0)))


def _block(wire, block):
    with np.errstate(all="ignore"):
        scale = scale_of(wire, block)
        if wire == "fp8":
            return (block * (np.float32(1) / scale)).astype(ml_dtypes.float8_e4m3fn).astype(
                np.float32
            ) * scale
        number = np.rint(block * (np.float32(1) / scale)) * scale + np.float32(0)  # no -0
        return np.where(np.isfinite(block), number, np.float32(np.nan))


def expected(wire, values):
    """Q(values), with NaN as the one that the kernels return."""
    with np.errstate(all="ignore"):
        if wire in CASTS:
            result = values.astype(CASTS[wire]).astype(np.float32)
        else:
            starts = range(0, values.size, BLOCK)
            blocks = [_block(wire, values[at : at + BLOCK]) for at in starts]
            result = np.concatenate([np.zeros(0, np.float32), *blocks]).astype(np.float32)
    result.view(np.uint32)[np.isnan(result)] = 0x7FC00000
    return result


def bound(wire, values):
    """The largest error that is documented, element by element."""
    size = np.abs(values).astype(np.float64)
    if wire in CASTS:
        info = ml_dtypes.finfo(CASTS[wire])
        return np.maximum(size * float(info.eps) / 2, float(info.smallest_subnormal) / 2)
    starts = range(0, values.size, BLOCK)
    scale = np.concatenate([
        np.full(values[at : at + BLOCK].size, scale_of(wire, values[at : at + BLOCK])) for at in starts
    ]).astype(np.float64)  # fmt: skip
    return scale * (0.5 + 2e-5) if wire == "int8" else np.maximum(size / 16, scale * 2.0**-10)
