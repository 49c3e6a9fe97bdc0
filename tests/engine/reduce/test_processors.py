"""The kernels' bits are those of every processor: x86-64 and arm64 compute what is written down here."""

import hashlib

import numpy as np
import pytest
from reduce_oracle import SUPPORTED, bytes_of, combine, engine, random_bits
from wire_oracle import WIRES, encode, through

COMBINED = "c4f67d8f3d4f434bf663fd749aed4ff3f07d0dd1878ef6c6e903a6a12d37b575"
ENCODED = "dfdcb1b7ddb51a430dd59ecebce264dd47ed28b551f5c693ed6b18142273e290"
every_isa = pytest.mark.parametrize("isa", engine.instruction_sets())


@every_isa
def test_combined(isa):
    rng, digest = np.random.default_rng(31), hashlib.sha256()
    for dtype, op in SUPPORTED:
        for sources in (2, 3):
            spans = [random_bits(dtype, 20_003, rng) for _ in range(sources)]
            digest.update(bytes_of(combine(dtype, op, spans, 1, 0.3, isa)[0]))
    assert digest.hexdigest() == COMBINED


@every_isa
def test_encoded(isa):
    rng, digest = np.random.default_rng(32), hashlib.sha256()
    for wire in WIRES:
        for _ in range(10):
            # Of like size, so that scales are not all the largest.
            bits = (
                rng.integers(0, 1 << 23, 5003, dtype=np.uint32)
                | rng.integers(100, 150, 5003, dtype=np.uint32) << 23
            )
            bits |= rng.integers(0, 2, 5003, dtype=np.uint32) << 31
            digest.update(encode(wire, bits.view(np.float32), isa))
            digest.update(through(wire, random_bits("float32", 5003, rng), isa).tobytes())
    assert digest.hexdigest() == ENCODED
