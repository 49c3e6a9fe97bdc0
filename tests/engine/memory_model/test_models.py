"""herd7 checks the protocols of shared memory under models of weak memory: make test-memory-model.

HERD7 is the command, with options if its libraries are elsewhere; by default `herd7` on the PATH.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engine.memory_model.litmus import HEADER, X86, Arm, Protocol, as_c, as_machine_code, named_orders
from tests.engine.memory_model.protocols import BEST_EFFORT, MENDED, MISSED_RING, PROTOCOLS

HERD = shlex.split(os.environ.get("HERD7", "herd7"))
ORDERS = named_orders(HEADER.read_text())
MODELS = {
    "cpp": lambda protocol, orders: (as_c(protocol, orders), "rc11.cat"),
    "arm": lambda protocol, orders: (as_machine_code(protocol, orders, Arm(exclusive=False)), "aarch64.cat"),
    "arm 8.0": lambda protocol, orders: (
        as_machine_code(protocol, orders, Arm(exclusive=True)),
        "aarch64.cat",
    ),
    "x86": lambda protocol, orders: (as_machine_code(protocol, orders, X86()), "x86tso.cat"),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which(HERD[0]), reason="needs herd7: apt-get install herdtools7, or HERD7"),
]


def possible(protocol: Protocol, orders: Mapping[str, str], model: str, folder: Path) -> bool:
    """Whether the model allows the protocol's outcome, or finds a data race."""
    text, cat = MODELS[model](protocol, orders)
    file = folder / "test.litmus"
    file.write_text(text)
    ran = subprocess.run([*HERD, "-model", cat, file], capture_output=True, text=True, check=False)
    found = re.search(r"^Observation \S+ (Never|Sometimes|Always) (\d+) (\d+)$", ran.stdout, re.MULTILINE)
    assert found and not ran.returncode, f"{text}\n{ran.stdout}{ran.stderr}"
    assert int(found[2]) + int(found[3]) > 0, text
    return found[1] != "Never" or bool(re.search(r"^Flag (?!Assuming)", ran.stdout, re.MULTILINE))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda one: one.name)
def test_outcome_is_impossible(protocol: Protocol, model: str, tmp_path: Path) -> None:
    assert not possible(protocol, ORDERS, model, tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_a_ring_may_be_missed(model: str, tmp_path: Path) -> None:
    assert possible(MISSED_RING, ORDERS, model, tmp_path)


WEAKER = {"acquire": "relaxed", "release": "relaxed", "seq_cst": "acq_rel"}


# Each protocol that is broken on purpose, by one order, is caught.
@pytest.mark.parametrize("name", sorted(n for n, o in ORDERS.items() if o != "relaxed" and n not in WEAKER))
def test_no_order_may_be_weaker(name: str, tmp_path: Path) -> None:
    orders = {**ORDERS, name: WEAKER[ORDERS[name]]}
    found = [one.name for one in PROTOCOLS if name in one.orders and possible(one, orders, "cpp", tmp_path)]
    assert bool(found) == (name not in BEST_EFFORT), found


@pytest.mark.parametrize("name", MENDED)
def test_what_x86_forgives(name: str, tmp_path: Path) -> None:
    (protocol,) = (one for one in PROTOCOLS if one.about.startswith(MENDED[name] + ":"))
    orders = {**ORDERS, name: "relaxed"}
    assert {model for model in MODELS if possible(protocol, orders, model, tmp_path)} >= {"cpp", "arm"}
    assert not possible(protocol, orders, "x86", tmp_path)
