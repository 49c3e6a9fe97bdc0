"""What a GPU's threads combine, against the CPU's kernels: the same bits, whatever they are."""

import numpy as np
import pytest

from tests.engine.reduce.reduce_oracle import (
    INTEGERS,
    NUMPY,
    PARTS,
    SMALL_FLOATS,
    SUPPORTED,
    assert_same_bits,
    bytes_of,
    combine,
    engine,
    random_bits,
    random_values,
    special_values,
)

every_pair = pytest.mark.parametrize("dtype,op", SUPPORTED)


def check(gpu, dtype, op, spans, scale=1 / 3, shifts=(), destinations=1, **how):
    """Combines copies of the spans that begin at these shifts; the last shifts are the destinations'."""
    shifts = [*shifts, *[0] * (len(spans) + destinations - len(shifts))]
    sources = [gpu.place(span, shift) for span, shift in zip(spans, shifts, strict=False)]
    results = [gpu.place(np.zeros_like(spans[0]), shift) for shift in shifts[len(spans) :]]
    gpu.combine(dtype, op, results, sources, spans[0].size, scale, **how)
    wanted = combine(dtype, op, spans, 1, scale)[0]
    for result in results:
        assert_same_bits(result.read().view(wanted.dtype), wanted, (len(spans), shifts, how))
        assert result.is_untouched_around()
    for source, span in zip(sources, spans, strict=True):
        assert (source.read() == bytes_of(span)).all()


@every_pair
def test_every_number_of_sources(gpu, dtype, op):
    rng = np.random.default_rng(1)
    for sources in range(1, 17):
        for kind in (random_bits, random_values):
            spans = [kind(dtype, 203, rng) for _ in range(sources)]
            check(gpu, dtype, op, spans)
            check(gpu, dtype, op, spans, known=False, backwards=True)


@every_pair
def test_every_count(gpu, dtype, op):
    rng = np.random.default_rng(2)
    for count in [*range(40), *range(120, 140), 255, 256, 257, 1000]:
        spans = [random_bits(dtype, count, rng) for _ in range(2)]
        check(gpu, dtype, op, spans, 0.5, group=1)
        check(gpu, dtype, op, spans, 0.5, group=5, known=False)
        check(gpu, dtype, op, spans, 0.5, group=64)


@every_pair
def test_any_alignment(gpu, dtype, op):
    """Aligned alike, apart by elements, and apart by bytes."""
    rng = np.random.default_rng(3)
    size = engine.size_of(dtype)
    for count in (0, 1, 3, 17, 150):
        spans = [random_bits(dtype, count, rng) for _ in range(3)]
        for shift in range(0, 17, 1):
            check(gpu, dtype, op, spans, shifts=[shift] * 5, destinations=2)
        for _ in range(6):
            shifts = rng.integers(0, 16, 5)
            check(gpu, dtype, op, spans, shifts=shifts, destinations=2)
            check(gpu, dtype, op, spans, shifts=shifts * size, destinations=2)


@every_pair
def test_a_destination_may_be_a_source(gpu, dtype, op):
    rng = np.random.default_rng(4)
    for shared in range(3):
        for shift in (0, engine.size_of(dtype), 1):
            spans = [random_values(dtype, 333, rng) for _ in range(3)]
            wanted = combine(dtype, op, spans, 1, 1 / 3)[0]
            places = [gpu.place(span, shift) for span in spans]
            other = gpu.place(spans[0])
            gpu.combine(dtype, op, [places[shared], other], places, 333, 1 / 3)
            assert_same_bits(places[shared].read().view(wanted.dtype), wanted)
            assert_same_bits(other.read().view(wanted.dtype), wanted)


@pytest.mark.parametrize(
    "dtype,op", [("float32", "sum"), ("bfloat16", "avg"), ("int8", "max"), ("bool", "sum")]
)
def test_many_destinations(gpu, dtype, op):
    rng = np.random.default_rng(5)
    for sources, destinations in [(2, 2), (2, 3), (5, 16), (16, 16)]:
        spans = [random_values(dtype, 333, rng) for _ in range(sources)]
        check(gpu, dtype, op, spans, destinations=destinations)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", [name for name in NUMPY if "float" in name])
def test_all_pairs_of_special_values(gpu, dtype, op):
    values = special_values(dtype)
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(values, values))
    for scale in (1.0, 1 / 3, 1e30, 1e-30):
        check(gpu, dtype, op, [a, b], scale)
        check(gpu, dtype, op, [a, b, a], scale)


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("dtype", PARTS)
def test_all_pairs_of_special_complex_values(gpu, dtype, op):
    values = special_values(PARTS[dtype])
    pairs = np.stack(np.meshgrid(*[values] * 4), axis=-1).reshape(-1, 4)
    a, b = (np.ascontiguousarray(half).view(NUMPY[dtype]).ravel() for half in (pairs[:, :2], pairs[:, 2:]))
    check(gpu, dtype, op, [a, b])


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_pattern_of_small_floats(gpu, dtype):
    kind = np.dtype(NUMPY[dtype])
    patterns = np.arange(1 << (8 * kind.itemsize)).astype(f"u{kind.itemsize}").view(kind)
    other = np.random.default_rng(6).permutation(patterns)
    for op in ("sum", "prod", "min", "max"):
        check(gpu, dtype, op, [patterns])
        check(gpu, dtype, op, [patterns, other])
    for scale in (1.0, 0.5, 1.5, 3.0, 2**-5, 1.0625, -1.03125, 1.3e4):
        check(gpu, dtype, "avg", [patterns], scale)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_rounding_of_sums_near_ties(gpu, dtype):
    """float32 sums of two, whose last bits decide how they round."""
    kind = np.dtype(NUMPY[dtype])
    patterns = np.arange(1 << (8 * kind.itemsize)).astype(f"u{kind.itemsize}").view(kind)
    patterns = np.tile(patterns, 256 if kind.itemsize == 1 else 1)
    for seed in range(8):
        check(gpu, dtype, "avg", [patterns, np.random.default_rng(seed).permutation(patterns)], 1 / 3)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "scale", [1, 1 / 2, 1 / 3, 1 / 127, 1 / 128, 1 / 255, 1 / 256, 1 / 1000, 2.0**-31, 2.0**-32]
)
def test_average_of_integers_cuts(gpu, dtype, scale):
    info = np.iinfo(NUMPY[dtype])
    edges = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3], NUMPY[dtype])
    span = np.concatenate([edges, random_bits(dtype, 500, np.random.default_rng(7))])
    check(gpu, dtype, "avg", [span], scale)


@pytest.mark.parametrize("scale", [0.0, -1.0, 5.0, np.inf, np.nan, 1e-18, 1e-19, 1e-300])
def test_average_of_integers_by_any_scale(gpu, scale):
    for dtype in INTEGERS:
        check(gpu, dtype, "avg", [random_bits(dtype, 99, np.random.default_rng(8))] * 2, scale)


def test_copy(gpu):
    rng = np.random.default_rng(9)
    for count in [*range(0, 80), 255, 1000, 4097]:
        for shift in (0, 1, 8):
            data = rng.integers(0, 256, count, dtype=np.uint8)
            results = [gpu.place(np.zeros(count, np.uint8), at) for at in (0, shift)]
            gpu.copy(results, gpu.place(data, shift), count)
            assert all((result.read() == data).all() and result.is_untouched_around() for result in results)


def test_a_grid_that_loops(gpu):
    """More elements than the threads of three thread blocks take at once."""
    rng = np.random.default_rng(10)
    for dtype in ("float32", "bfloat16", "uint8"):
        spans = [random_values(dtype, 50_021, rng) for _ in range(4)]
        check(gpu, dtype, "sum", spans, group=3)
        check(gpu, dtype, "sum", spans, shifts=[0, 4, 8, 12, 0], group=3)


def test_what_is_not_supported_is_refused(gpu):
    data = gpu.place(np.zeros(64, np.uint8))
    for dtype in engine.dtypes():
        for op in engine.ops():
            if not engine.supports(dtype, op):
                with pytest.raises(RuntimeError, match=f"{op} is not defined for dtype {dtype}"):
                    gpu.combine(dtype, op, [data], [data], 4)
    with pytest.raises(RuntimeError, match="33 sources, but there must be 1 to 32"):
        gpu.combine("float32", "sum", [data], [data] * 33, 4)
    with pytest.raises(RuntimeError, match="0 destinations"):
        gpu.combine("float32", "sum", [], [data], 4)
