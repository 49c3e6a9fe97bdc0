"""The tables of quantised messages: those in the documentation are those that come out, and they say what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.engine import wire

ROOT = Path(__file__).resolve().parents[2]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_documentation_has_the_tables_that_come_out():
    command = [sys.executable, "-m", "bench.engine.wire"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout
    errors, narrow, sent = out.strip().split("\n\n")
    text = (ROOT / "docs" / "accuracy.md").read_text()
    for table in (errors, narrow, sent):
        assert table in text, "print them anew with bench/engine/wire.py"
    found = {(wire, int(ranks)): cells for wire, ranks, *cells in rows(errors)[2:]}
    at = {name: place for place, name in enumerate(rows(errors)[0][2:])}
    for (name, ranks), cells in found.items():
        most, usual = zip(*((float(part) for part in cell.split(",")) for cell in cells), strict=True)
        assert all(high > low for high, low in zip(most, usual, strict=True))
        if name != "float32" and ranks > 2:
            assert usual[at["one_shot"]] < usual[at["two_shot"]] < usual[at["ring"]], (name, ranks)
    for array, name, ranks, *cells in rows(narrow)[2:]:
        if name == "none":
            continue
        for both in zip(cells, found[name, int(ranks)], strict=True):
            narrowed, of_float32 = (float(cell.split(",")[1]) for cell in both)
            assert narrowed <= 1.1 * of_float32, (array, name, ranks)


def test_errors_are_relative_to_the_sums_size():
    errors = np.array([0.0, 3.0, 4.0, 0.0])
    assert wire.cell(errors) == "4.0e+00, 2.5e+00"


def test_bytes():
    table = rows(wire.bytes_table([2, 4]))
    assert table[0] == ["algorithm", "ranks", "float32", *wire.WIRES]
    assert table[2] == ["two_shot", "2", "4.00", "2.00", "2.00", "1.02", "1.02"]
    assert ["ring", "4", "6.00", "3.00", "3.00", "1.52", "1.52"] in table
