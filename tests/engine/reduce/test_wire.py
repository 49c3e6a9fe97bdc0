"""Wire formats: the same bits as NumPy's, on every instruction set; what NaN and infinity become; bad spans."""

import numpy as np
import pytest
from reduce_oracle import assert_same_bits
from wire_oracle import (
    BLOCK,
    CASTS,
    COUNTS,
    KINDS,
    LARGEST,
    WIRES,
    bound,
    decode,
    encode,
    engine,
    expected,
    through,
    values_of,
)

ISAS = engine.instruction_sets()
every_isa = pytest.mark.parametrize("isa", ISAS)
every_wire = pytest.mark.parametrize("wire", WIRES)


def test_names_and_lengths():
    assert engine.wires() == ["none", *WIRES]
    for count in COUNTS:
        assert engine.encoded_bytes("none", count) == 4 * count
        assert [engine.encoded_bytes(wire, count) for wire in CASTS] == [2 * count] * 2
        scales = 4 * -(-count // BLOCK)
        assert [engine.encoded_bytes(wire, count) for wire in ("int8", "fp8")] == [count + scales] * 2


@every_isa
@every_wire
@pytest.mark.parametrize("kind", KINDS)
def test_against_numpy(wire, kind, isa):
    rng = np.random.default_rng(11)
    for count in COUNTS:
        values = values_of(kind, count, rng)
        assert_same_bits(through(wire, values, isa), expected(wire, values), (kind, count))


@every_wire
@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_send_the_same_bytes(wire, kind):
    rng = np.random.default_rng(12)
    for count in COUNTS:
        values = values_of(kind, count, rng)
        encoded = [encode(wire, values, isa) for isa in ISAS]
        assert all((one == encoded[0]).all() for one in encoded), count


@every_isa
@every_wire
@pytest.mark.parametrize("kind", KINDS)
def test_passing_on_changes_nothing(wire, kind, isa):
    rng = np.random.default_rng(13)
    for count in [1, 255, 256, 5003]:
        for _ in range(20):
            once = through(wire, values_of(kind, count, rng), isa)
            assert_same_bits(through(wire, once, isa), once, (kind, count))


@every_wire
@pytest.mark.parametrize("kind", ["normal", "wide", "ties", "tiny"])
def test_error_is_within_what_is_documented(wire, kind):
    rng = np.random.default_rng(14)
    values = values_of(kind, 100_003, rng)
    if wire == "fp16":
        values = values[np.abs(values) < 65504]
    far = np.abs(through(wire, values).astype(np.float64) - values)
    assert (far <= bound(wire, values)).all()


@every_isa
@every_wire
def test_every_scale(wire, isa):
    """Blocks of every exponent that float32 has, whose largest value is anything."""
    rng = np.random.default_rng(15)
    for exponent in range(-149, 128):
        with np.errstate(over="ignore"):
            block = rng.uniform(-1, 1, BLOCK) * rng.uniform(1, 2) * 2.0**exponent
            block = np.clip(block, -LARGEST, LARGEST).astype(np.float32)
        block[0] = LARGEST if exponent == 127 else block[0]
        once = through(wire, block, isa)
        assert_same_bits(once, expected(wire, block), exponent)
        assert_same_bits(through(wire, once, isa), once, exponent)
        if wire == "int8":
            assert np.isfinite(once).all()


@every_isa
@pytest.mark.parametrize("wire", ["int8", "fp8"])
@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [7, BLOCK, BLOCK + 40])
def test_what_is_no_number_becomes_nan_and_spoils_nothing_else(wire, odd, count, isa):
    values = np.random.default_rng(16).standard_normal(count).astype(np.float32)
    for place in {0, count // 2, count - 1}:
        spoilt = values.copy()
        spoilt[place] = odd
        result = through(wire, spoilt, isa)
        assert result.view(np.uint32)[place] == 0x7FC00000
        others = np.delete(np.arange(count), place)
        assert np.isfinite(result[others]).all()
        assert (np.abs(result - values)[others] <= bound(wire, spoilt)[others]).all()


@every_isa
def test_casts_are_casts(isa):
    odd = np.array([np.nan, np.inf, -np.inf, 65519.99, 65520, -65520, LARGEST, -0.0, 1e-8, 3e-8], np.float32)
    assert_same_bits(through("fp16", odd, isa), expected("fp16", odd))
    assert through("fp16", odd, isa)[3:7].tolist() == [65504, np.inf, -np.inf, np.inf]
    assert_same_bits(through("bf16", odd, isa), expected("bf16", odd))
    assert np.isposinf(through("bf16", odd, isa)[6])


@every_isa
@every_wire
def test_spans_need_no_alignment_and_nothing_beside_them_is_touched(wire, isa):
    rng = np.random.default_rng(17)
    for count in [1, 16, 255, 256, 1000]:
        values = rng.standard_normal(count).astype(np.float32)
        length = engine.encoded_bytes(wire, count)
        for shift in (1, 2, 3, 5, 64):
            memory = np.full(length + 2 * shift, 77, np.uint8)
            apart = np.zeros(4 * count + shift, np.uint8)[shift:]
            apart[:] = values.view(np.uint8)
            engine.encode(wire, memory[shift : shift + length], apart, isa)
            assert (memory[:shift] == 77).all() and (memory[shift + length :] == 77).all()
            assert (memory[shift : shift + length] == encode(wire, values, isa)).all()
            back = np.full(4 * count + 2 * shift, 77, np.uint8)
            engine.decode(wire, back[shift : shift + 4 * count], memory[shift : shift + length], isa)
            assert (back[:shift] == 77).all() and (back[shift + 4 * count :] == 77).all()
            assert (back[shift : shift + 4 * count] == through(wire, values, isa).view(np.uint8)).all()


def test_decoding_zeros():
    assert not through("int8", np.zeros(300, np.float32)).any()
    assert not through("fp8", np.zeros(300, np.float32)).any()


def test_bad_spans_are_refused():
    data = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="unknown wire: int4"):
        engine.encode("int4", data, data)
    with pytest.raises(ValueError, match="not a wire format: none"):
        engine.encode("none", data, data)
    with pytest.raises(ValueError, match="inside a float32"):
        engine.encode("int8", data, data[:3])
    with pytest.raises(ValueError, match="does not have the length"):
        engine.encode("int8", data, data)
    with pytest.raises(ValueError, match="does not have the length"):
        decode("int8", data, 100)
