"""Wire formats on a GPU's threads: the bits of the CPU's decoding, combining and encoding one after another."""

import numpy as np
import pytest

from tests.engine.reduce.reduce_oracle import assert_same_bits, bytes_of, combine
from tests.engine.reduce.wire_oracle import BLOCK, COUNTS, KINDS, WIRES, decode, encode, values_of

from .cuda_library import Coded

ARRAYS = {"float32": "none", "float16": "fp16", "bfloat16": "bf16"}
CARRIED = [(wire, "float32") for wire in WIRES] + [
    (wire, plain) for wire in ("int8", "fp8") for plain in ("float16", "bfloat16")
]
OPS = ["sum", "prod", "min", "max", "avg"]
carried = pytest.mark.parametrize("wire,plain", CARRIED)


def narrow(plain, values):
    """Values as an array of this type holds them: its bytes."""
    return bytes_of(values).copy() if plain == "float32" else encode(ARRAYS[plain], values)


def widen(plain, stored):
    return (
        stored.copy().view(np.float32)
        if plain == "float32"
        else decode(ARRAYS[plain], stored, stored.size // 2)
    )


def joined(op, values, scale):
    return combine("float32", op, values, 1, scale)[0]


def empty(gpu, like, shift=0):
    return gpu.place(np.full_like(like, 0x5A), shift)


def same(actual, wanted, context=""):
    assert_same_bits(actual.read(), wanted, context)
    assert actual.is_untouched_around()


@carried
@pytest.mark.parametrize("kind", KINDS)
def test_encode(gpu, wire, plain, kind):
    rng = np.random.default_rng(21)
    for count in COUNTS:
        stored = narrow(plain, values_of(kind, count, rng))
        wanted = encode(wire, joined("sum", [widen(plain, stored)], 1))
        encoded = empty(gpu, wanted)
        coded = Coded(wire, plain, "sum", destinations=[0])
        gpu.combine_coded(coded, [encoded], [gpu.place(stored)], count)
        same(encoded, wanted, count)
        if plain == "float32":
            assert (wanted == encode(wire, stored.view(np.float32))).all()


@carried
@pytest.mark.parametrize("kind", KINDS)
def test_decode(gpu, wire, plain, kind):
    rng = np.random.default_rng(22)
    for count in COUNTS:
        encoded = encode(wire, values_of(kind, count, rng))
        wanted = narrow(plain, decode(wire, encoded, count))
        result = empty(gpu, wanted)
        coded = Coded(wire, plain, "sum", sources=[0])
        gpu.combine_coded(coded, [result], [gpu.place(encoded)], count)
        same(result, wanted, count)


@carried
def test_every_code(gpu, wire, plain):
    """Of a block whose scale is any: what encoding never gives decodes alike, too, but for the bits of NaN."""
    rng = np.random.default_rng(23)
    codes = np.tile(np.arange(256, dtype=np.uint8), 2)
    if wire in ("bf16", "fp16"):
        messages = [bytes_of(np.arange(1 << 16).astype(np.uint16))]
    else:
        scales = 2.0 ** rng.integers(-100, 100, 8).astype(np.float32)
        messages = [np.concatenate([bytes_of(np.array([s], np.float32)), codes[:BLOCK]]) for s in scales]
    for message in messages:
        count = message.size // 2 if wire in ("bf16", "fp16") else BLOCK
        wanted = narrow(plain, joined("sum", [decode(wire, message, count)], 1))
        result = empty(gpu, wanted)
        coded = Coded(wire, plain, "sum", sources=[0])
        gpu.combine_coded(coded, [result], [gpu.place(message)], count)
        same(result, wanted)


@carried
@pytest.mark.parametrize("op", OPS)
def test_encoding_a_sum(gpu, wire, plain, op):
    rng = np.random.default_rng(24)
    for sources in range(1, 17):
        count = int(rng.choice([1, 7, 255, 256, 700]))
        stored = [narrow(plain, values_of("normal", count, rng)) for _ in range(sources)]
        total = joined(op, [widen(plain, one) for one in stored], 1 / 3)
        wanted = encode(wire, total)
        places = [gpu.place(one) for one in stored]
        encoded, again = empty(gpu, wanted), empty(gpu, wanted)
        plainly = empty(gpu, stored[0])
        coded = Coded(wire, plain, op, destinations=[0, 2])
        gpu.combine_coded(coded, [encoded, plainly, again], places, count, 1 / 3)
        same(encoded, wanted, sources)
        same(again, wanted, sources)
        same(plainly, narrow(plain, total), sources)


@carried
@pytest.mark.parametrize("op", OPS)
def test_combining_what_is_encoded(gpu, wire, plain, op):
    """In rank order, as an algorithm meets it: one source is this rank's own and plain, the others have arrived."""
    rng = np.random.default_rng(25)
    for sources in range(1, 17):
        count = int(rng.choice([1, 7, 255, 256, 700]))
        own = int(rng.integers(sources))
        spans, values = [], []
        for source in range(sources):
            span = values_of(rng.choice(["normal", "any bits"]), count, rng)
            spans.append(narrow(plain, span) if source == own else encode(wire, span))
            values.append(widen(plain, spans[-1]) if source == own else decode(wire, spans[-1], count))
        total = joined(op, values, 0.25)
        message = encode(wire, total)
        for quantize in (False, True):
            final = decode(wire, message, count) if quantize else total
            places = [gpu.place(span) for span in spans]
            outgoing = empty(gpu, message)
            others = [source for source in range(sources) if source != own]
            coded = Coded(wire, plain, op, sources=others, destinations=[1], quantize=quantize)
            gpu.combine_coded(coded, [places[own], outgoing], places, count, 0.25)
            same(outgoing, message, (sources, own))
            same(places[own], narrow(plain, joined("sum", [final], 1)), (sources, own, quantize))


@carried
def test_a_message_may_be_replaced(gpu, wire, plain):
    rng = np.random.default_rng(26)
    messages = [encode(wire, values_of("normal", 777, rng)) for _ in range(2)]
    wanted = encode(wire, joined("sum", [decode(wire, one, 777) for one in messages], 1))
    places = [gpu.place(one) for one in messages]
    coded = Coded(wire, plain, "sum", sources=[0, 1], destinations=[0])
    gpu.combine_coded(coded, [places[1]], places, 777)
    same(places[1], wanted)


@carried
def test_any_alignment(gpu, wire, plain):
    rng = np.random.default_rng(27)
    for count in (1, 16, 255, 256, 600):
        stored = narrow(plain, values_of("normal", count, rng))
        total = joined("sum", [widen(plain, stored)] * 2, 1)
        message = encode(wire, total)
        other = encode(wire, widen(plain, stored))
        mixed = joined("sum", [widen(plain, stored), decode(wire, other, count)], 1)
        for shifts in [(1, 1, 1), (2, 4, 2), (4, 2, 8), (8, 8, 4), (3, 0, 5), (0, 3, 0)]:
            plainly, encoded = gpu.place(stored, shifts[0]), empty(gpu, message, shifts[1])
            coded = Coded(wire, plain, "sum", destinations=[0])
            gpu.combine_coded(coded, [encoded], [plainly, plainly], count)
            same(encoded, message, (count, shifts))
            result = empty(gpu, stored, shifts[2])
            arrived = gpu.place(other, shifts[1])
            coded = Coded(wire, plain, "sum", sources=[1])
            gpu.combine_coded(coded, [result], [plainly, arrived], count)
            same(result, narrow(plain, mixed), (count, shifts))


@pytest.mark.parametrize("wire", ["int8", "fp8"])
def test_every_scale(gpu, wire):
    rng = np.random.default_rng(28)
    most = np.finfo(np.float32).max
    for exponent in range(-149, 128):
        with np.errstate(over="ignore"):
            block = rng.uniform(-1, 1, BLOCK) * rng.uniform(1, 2) * 2.0**exponent
            block = np.clip(block, -most, most).astype(np.float32)
        block[0] = most if exponent == 127 else block[0]
        block[1] = (block[1], np.nan, np.inf, -np.inf)[exponent % 4]
        wanted = encode(wire, block)
        encoded = empty(gpu, wanted)
        coded = Coded(wire, "float32", "sum", destinations=[0])
        gpu.combine_coded(coded, [encoded], [gpu.place(block)], BLOCK)
        same(encoded, wanted, exponent)


def test_what_cannot_be_carried_is_refused(gpu):
    data = gpu.place(np.zeros(64, np.uint8))
    for wire, plain in [("bf16", "bfloat16"), ("none", "float32"), ("int8", "float64"), ("fp8", "int8")]:
        with pytest.raises(RuntimeError, match=f"{wire} does not support sum of {plain}"):
            gpu.combine_coded(Coded(wire, plain, "sum"), [data], [data], 4)
    with pytest.raises(RuntimeError, match="int8 does not support bor of float32"):
        gpu.combine_coded(Coded("int8", "float32", "bor"), [data], [data], 4)


def test_a_grid_that_loops(gpu):
    rng = np.random.default_rng(29)
    values = [values_of("wide", 30_011, rng) for _ in range(3)]
    for wire in WIRES:
        wanted = encode(wire, joined("sum", values, 1))
        encoded = empty(gpu, wanted)
        coded = Coded(wire, "float32", "sum", destinations=[0])
        gpu.combine_coded(coded, [encoded], [gpu.place(one) for one in values], 30_011, group=3)
        same(encoded, wanted)
