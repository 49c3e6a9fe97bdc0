"""16- and 8-bit floats: every pattern there and back, and rounding exactly as ml_dtypes and NumPy round."""

import ml_dtypes
import numpy as np
import pytest
from reduce_oracle import NUMPY, SMALL_FLOATS, assert_same_bits, bits, combine, engine, expected, with_one_nan

every_isa = pytest.mark.parametrize("isa", engine.instruction_sets())
every_small_float = pytest.mark.parametrize("dtype", SMALL_FLOATS)


def every_pattern(dtype):
    kind = np.dtype(NUMPY[dtype])
    return np.arange(1 << (8 * kind.itemsize)).astype(f"u{kind.itemsize}").view(kind)


@every_isa
@every_small_float
def test_every_pattern_comes_back(dtype, isa):
    patterns = every_pattern(dtype)
    for op in ("sum", "prod", "min", "max", "avg"):
        assert_same_bits(combine(dtype, op, [patterns], 1, 1.0, isa)[0], with_one_nan(dtype, patterns), op)


@every_isa
@every_small_float
def test_every_pattern_scaled(dtype, isa):
    """Scaling by odd factors walks through ties, subnormals and overflow."""
    patterns = every_pattern(dtype)
    for scale in (0.5, 1.5, 3.0, 2**-5, 1.0625, -1.03125, 1.3e4):
        wanted = expected(dtype, "avg", [patterns], scale)
        assert_same_bits(combine(dtype, "avg", [patterns], 1, scale, isa)[0], wanted, scale)


@every_isa
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_every_pair_of_8_bit_floats(dtype, op, isa):
    patterns = every_pattern(dtype)
    a, b = np.repeat(patterns, 256), np.tile(patterns, 256)
    for spans in ([a, b], [a, b, np.random.default_rng(8).permutation(a)]):
        scale = 1 / len(spans)
        assert_same_bits(combine(dtype, op, spans, 1, scale, isa)[0], expected(dtype, op, spans, scale))


@every_isa
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_random_pairs_of_16_bit_floats(dtype, op, isa):
    patterns = every_pattern(dtype)
    rng = np.random.default_rng(8)
    for _ in range(4):
        other = rng.permutation(patterns)
        wanted = expected(dtype, op, [patterns, other])
        assert_same_bits(combine(dtype, op, [patterns, other], 1, 1.0, isa)[0], wanted)


def test_one_rounding_only():
    """1 + tiny + tiny + ... moves a 16-bit sum only if nothing is rounded on the way."""
    for dtype in SMALL_FLOATS:
        half_step = float(ml_dtypes.finfo(NUMPY[dtype]).eps) / 2
        spans = [
            np.array([value] * 70).astype(NUMPY[dtype]) for value in [1.0, half_step, half_step, half_step]
        ]
        result = combine(dtype, "sum", spans)[0]
        assert (result.astype(np.float32) == 1 + 4 * half_step).all(), dtype
        assert (bits(result) == bits(result)[0]).all()


def test_overflow():
    top = {name: np.full(40, ml_dtypes.finfo(NUMPY[name]).max, NUMPY[name]) for name in SMALL_FLOATS}
    for name in ("float16", "bfloat16", "float8_e5m2"):
        assert np.isposinf(combine(name, "sum", [top[name]] * 2)[0].astype(np.float32)).all()
    assert (bits(combine("float8_e4m3fn", "sum", [top["float8_e4m3fn"]] * 2)[0]) == 0x7F).all()
    assert (bits(combine("float8_e4m3fn", "sum", [-top["float8_e4m3fn"]] * 2)[0]) == 0x7F).all()
