"""Names, support, choice of the instruction set, agreement between them, and copies."""

import os
import subprocess
import sys

import numpy as np
import pytest
from reduce_oracle import (
    FLOATS,
    NUMPY,
    PARTS,
    SUPPORTED,
    assert_same_bits,
    bytes_of,
    combine,
    engine,
    random_bits,
)

ISAS = engine.instruction_sets()


def test_names_and_sizes():
    assert engine.dtypes() == list(NUMPY)
    assert engine.ops() == ["sum", "prod", "min", "max", "band", "bor", "bxor", "avg"]
    for name, kind in NUMPY.items():
        assert engine.size_of(name) == np.dtype(kind).itemsize


def test_supports():
    for dtype in engine.dtypes():
        for op in engine.ops():
            wanted = True
            if op in ("band", "bor", "bxor"):
                wanted = dtype not in [*FLOATS, *PARTS]
            if op in ("min", "max"):
                wanted = dtype not in PARTS
            if op == "avg":
                wanted = dtype != "bool"
            assert engine.supports(dtype, op) == wanted, (dtype, op)
            if not wanted:
                with pytest.raises(ValueError, match="is not defined for dtype"):
                    engine.combine(dtype, op, [np.zeros(16, np.uint8)], [np.zeros(16, np.uint8)])


@pytest.mark.parametrize("dtype,op", SUPPORTED)
def test_instruction_sets_agree_bit_for_bit(dtype, op):
    rng = np.random.default_rng(9)
    spans = [random_bits(dtype, 20_003, rng) for _ in range(3)]
    results = [combine(dtype, op, spans, 1, 0.3, isa)[0] for isa in ISAS]
    for isa, result in zip(ISAS, results, strict=True):
        assert_same_bits(result, results[0], isa)


def run_with_isa(isa):
    code = "from ringreduce import _engine; print(_engine.reduce.instruction_set())"
    environment = {**os.environ, "RINGREDUCE_ISA": isa}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_environment_picks_the_instruction_set():
    assert run_with_isa("").stdout.strip() == ISAS[0]
    for isa in ISAS:
        assert run_with_isa(isa).stdout.strip() == isa
    refused = run_with_isa("abacus")
    assert refused.returncode != 0
    assert "RINGREDUCE_ISA=abacus" in refused.stderr
    assert ISAS[-1] in refused.stderr


@pytest.mark.parametrize("isa", [*ISAS, "string"])
@pytest.mark.parametrize("destinations", [1, 2, 5])
def test_copy(isa, destinations):
    rng = np.random.default_rng(10)
    for count in [*range(200), 255, 1000, 2047, 2048, 2049, 65_537, 1 << 20]:
        shift = int(rng.integers(0, 70))
        source = rng.integers(0, 256, count + shift, dtype=np.uint8)[shift:]
        targets = [np.zeros(count + 80, np.uint8) for _ in range(destinations)]
        engine.copy([t[7 : 7 + count] for t in targets], source, isa)
        for target in targets:
            np.testing.assert_array_equal(target[7 : 7 + count], source)
            assert not target[:7].any()
            assert not target[7 + count :].any()


def copied_to_reader(counts, slow_from, least_gain, least_gain_of_short=None):
    rng = np.random.default_rng(11)
    sources = [rng.integers(0, 256, count, dtype=np.uint8) for count in counts]
    targets = [np.zeros(count + 80, np.uint8) for count in counts]
    gains = least_gain, least_gain if least_gain_of_short is None else least_gain_of_short
    past = engine.copy_to_reader([target[7:-73] for target in targets], sources, slow_from, *gains)
    return sources, targets, past


@pytest.mark.parametrize("slow_from", [0, 1e9])
def test_copies_to_a_reader_are_exact_either_way(slow_from):
    counts = [*range(3, 200), 2047, 2048, 2049, 4096, 5000, 65_537, *[1 << 20] * 6, 2051, 100_003]
    sources, targets, past = copied_to_reader(counts, slow_from=slow_from, least_gain=0)
    for source, target in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(target[7:-73], source)
        assert not target[:7].any()
        assert not target[-73:].any()
    assert past[-1] == (slow_from == 0), "every copy is slow, or none"


def test_two_slow_copies_of_three_let_the_next_go_past_the_cache_as_long_as_this_is_faster():
    sizes = [1 << 16] * 8
    past = copied_to_reader(sizes, slow_from=0, least_gain=0)[2]
    assert past == [False] + [True] * 7
    past = copied_to_reader(sizes, slow_from=0, least_gain=1e9)[2]
    assert past == [False, True, True] + [False] * 5, "two copies showed that it gains too little"


def test_short_copies_have_to_gain_more_past_the_cache():
    sizes = [1 << 16] * 4 + [4096, 1 << 16, 4096]
    past = copied_to_reader(sizes, slow_from=0, least_gain=0, least_gain_of_short=1e9)[2]
    assert past == [False, True, True, True, False, True, False]


def test_copies_of_less_than_2_kib_are_not_timed():
    assert not any(copied_to_reader([2047] * 100, slow_from=0, least_gain=0)[2])


def test_bad_buffers_are_refused():
    data = np.zeros(12, np.uint8)
    with pytest.raises(ValueError, match="unknown dtype: float33"):
        engine.combine("float33", "sum", [data], [data])
    with pytest.raises(ValueError, match="unknown op: mean"):
        engine.combine("float32", "mean", [data], [data])
    with pytest.raises(ValueError, match="no destinations"):
        engine.combine("float32", "sum", [], [data])
    with pytest.raises(ValueError, match="no sources"):
        engine.combine("float32", "sum", [data], [])
    with pytest.raises(ValueError, match="differ in size"):
        engine.combine("float32", "sum", [data], [data, data[:8]])
    with pytest.raises(ValueError, match="inside an element"):
        engine.combine("float64", "sum", [data], [data])
    frozen = bytes_of(np.zeros(3, np.float32))
    frozen.flags.writeable = False
    with pytest.raises(TypeError):
        engine.combine("float32", "sum", [frozen], [data])
