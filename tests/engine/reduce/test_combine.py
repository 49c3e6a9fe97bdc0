"""Every dtype and operator against NumPy, in every instruction set that this machine has."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reduce_oracle import (
    FLOATS,
    INTEGERS,
    NUMPY,
    PARTS,
    SUPPORTED,
    assert_same_bits,
    bytes_of,
    combine,
    engine,
    expected,
    random_bits,
    random_values,
    special_values,
)

ISAS = engine.instruction_sets()
OPS = {dtype: [op for _, op in pairs] for dtype, pairs in groupby(SUPPORTED, lambda pair: pair[0])}
# A test takes all operators and instruction sets in turn: NumPy computes its part once, and pytest's own time counts.
every_dtype = pytest.mark.parametrize("dtype", OPS)


def check(dtype, op, spans, scale=1.0, destinations=1, about=""):
    wanted = expected(dtype, op, spans, scale)
    for isa in ISAS:
        for result in combine(dtype, op, spans, destinations, scale, isa):
            assert_same_bits(result, wanted, (op, isa, about))


@every_dtype
def test_any_bits(dtype):
    for op in OPS[dtype]:
        rng = np.random.default_rng(1)
        for sources in (1, 2, 3, 4, 8, 9):
            check(dtype, op, [random_bits(dtype, 1031, rng) for _ in range(sources)], 1 / 3, about=sources)


@every_dtype
def test_values_of_like_size(dtype):
    for op in OPS[dtype]:
        rng = np.random.default_rng(2)
        check(dtype, op, [random_values(dtype, 5000, rng) for _ in range(4)], 0.25)


@every_dtype
def test_every_count(dtype):
    for op in OPS[dtype]:
        rng = np.random.default_rng(3)
        spans = [random_bits(dtype, 200, rng) for _ in range(2)]
        wanted = expected(dtype, op, spans, 0.5)
        for isa in ISAS:
            for count in range(201):
                result = np.zeros_like(wanted)
                nbytes = count * wanted.itemsize
                from_ = [bytes_of(span)[:nbytes] for span in spans]
                engine.combine(dtype, op, [bytes_of(result)[:nbytes]], from_, 0.5, isa)
                assert_same_bits(result[:count], wanted[:count], (op, isa, count))
                assert not bytes_of(result)[nbytes:].any(), (op, isa, count)


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_pairs_of_special_values(dtype):
    values = special_values(dtype)
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(values, values))
    for op in ("sum", "prod", "min", "max", "avg"):
        wanted = expected(dtype, op, [a, b], 1.0)
        for isa in ISAS:
            assert_same_bits(combine(dtype, op, [a, b], 1, 1.0, isa)[0], wanted, (op, isa))
            assert_same_bits(
                combine(dtype, op, [b, a], 1, 1.0, isa)[0], wanted, (op, isa, "the other way round")
            )


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("dtype", PARTS)
def test_order_of_two_complex_operands_does_not_show(dtype, op):
    rng = np.random.default_rng(8)
    values = special_values(PARTS[dtype])
    pairs = np.stack(np.meshgrid(*[values] * 4), axis=-1).reshape(-1, 4)
    for a, b in [
        tuple(np.ascontiguousarray(half).view(NUMPY[dtype]).ravel() for half in (pairs[:, :2], pairs[:, 2:])),
        (random_bits(dtype, 5000, rng), random_bits(dtype, 5000, rng)),
    ]:
        wanted = expected(dtype, op, [a, b])
        for isa in ISAS:
            assert_same_bits(combine(dtype, op, [a, b], 1, 1.0, isa)[0], wanted, isa)
            assert_same_bits(combine(dtype, op, [b, a], 1, 1.0, isa)[0], wanted, (isa, "the other way round"))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_average_of_integers_cuts(dtype):
    info = np.iinfo(NUMPY[dtype])
    for ranks in (1, 2, 3, 7, 64, 1000):
        if ranks > info.max:  # the divisor in the oracle has the element's type
            continue
        rng = np.random.default_rng(4)
        edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, ranks, ranks - 1]
        span = np.concatenate([np.array(edges, NUMPY[dtype]), random_bits(dtype, 500, rng)])
        check(dtype, "avg", [span], 1 / ranks, about=ranks)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [0.0, -1.0, 5.0, np.inf, np.nan, 1e-300])
def test_average_of_integers_is_the_sum_where_the_scale_is_no_fraction(scale, isa):
    for dtype in INTEGERS:
        spans = [np.arange(100).astype(NUMPY[dtype])] * 2
        wanted = expected(dtype, "sum", spans)
        assert_same_bits(combine(dtype, "avg", spans, 1, scale, isa)[0], wanted, dtype)


@pytest.mark.parametrize(
    "dtype,op", [("float32", "sum"), ("bfloat16", "sum"), ("int8", "max"), ("int64", "avg")]
)
def test_many_sources_and_destinations(dtype, op):
    rng = np.random.default_rng(5)
    for sources, destinations in [(2, 2), (2, 3), (1, 8), (5, 2), (17, 9), (64, 1), (100, 33)]:
        spans = [random_values(dtype, 333, rng) for _ in range(sources)]
        check(dtype, op, spans, 1 / sources, destinations, (sources, destinations))


@every_dtype
def test_a_destination_may_be_a_source(dtype):
    for op in OPS[dtype]:
        rng = np.random.default_rng(6)
        for shared in range(3):
            spans = [random_values(dtype, 777, rng) for _ in range(3)]
            wanted = expected(dtype, op, spans, 1 / 3)
            for isa in ISAS:
                copies, other = [span.copy() for span in spans], np.zeros_like(spans[0])
                views = [bytes_of(copy) for copy in copies]
                engine.combine(dtype, op, [views[shared], bytes_of(other)], views, 1 / 3, isa)
                assert_same_bits(copies[shared], wanted, (op, isa, shared))
                assert_same_bits(other, wanted, (op, isa, shared))


@every_dtype
@settings(max_examples=8, deadline=None)
@given(
    count=st.integers(0, 1500),
    sources=st.integers(1, 5),
    destinations=st.integers(1, 3),
    shifts=st.lists(st.integers(0, 70), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_misaligned_spans(dtype, count, sources, destinations, shifts, seed):
    rng = np.random.default_rng(seed)
    size = engine.size_of(dtype)
    spans = [random_bits(dtype, count, rng) for _ in range(sources)]
    room = [rng.integers(0, 256, count * size + 144, dtype=np.uint8) for _ in range(sources + destinations)]
    for op in OPS[dtype]:
        wanted = expected(dtype, op, spans, 0.5)
        for isa in ISAS:
            memory = [m.copy() for m in room]
            windows = [m[shift : shift + count * size] for m, shift in zip(memory, shifts, strict=False)]
            for window, span in zip(windows, spans, strict=False):
                window[:] = bytes_of(span)
            engine.combine(dtype, op, windows[sources:], windows[:sources], 0.5, isa)
            for i in range(sources, sources + destinations):
                assert_same_bits(windows[i].copy().view(wanted.dtype), wanted, (op, isa))
                around = room[i].copy()
                around[shifts[i] : shifts[i] + count * size] = windows[i]
                np.testing.assert_array_equal(memory[i], around)  # nothing outside the span was touched


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float8_e4m3fn", "complex64", "int8"])
def test_spans_of_several_pages(dtype, isa):
    rng = np.random.default_rng(8)
    size = engine.size_of(dtype)
    for destinations, sources in [(1, 2), (1, 3), (1, 4), (1, 8), (2, 2)]:
        for nbytes in (4 * 4096, 9 * 4096 - 64, 12 * 4096 + 200):
            count = nbytes // size
            spans = [random_values(dtype, count, rng) for _ in range(sources)]
            wanted = expected(dtype, "sum", spans, 1.0)
            memory = [np.full(count * size + 5 * size, 77, np.uint8) for _ in range(sources + destinations)]
            windows = [m[size * (k % 3) :][: count * size] for k, m in enumerate(memory)]
            for window, span in zip(windows, spans, strict=False):
                window[:] = bytes_of(span)
            engine.combine(dtype, "sum", windows[sources:], windows[:sources], 1.0, isa)
            about = destinations, sources, nbytes
            for k in range(sources, sources + destinations):
                assert_same_bits(windows[k].copy().view(wanted.dtype), wanted, (*about, k))
                assert (memory[k][: size * (k % 3)] == 77).all(), about
                assert (memory[k][size * (k % 3) + count * size :] == 77).all(), about
            engine.combine(dtype, "sum", [windows[0]], windows[:sources], 1.0, isa)  # in place
            assert_same_bits(windows[0].copy().view(wanted.dtype), wanted, about)


def test_large():
    rng = np.random.default_rng(7)
    check("float32", "sum", [rng.standard_normal(3_000_017).astype(np.float32) for _ in range(2)])
