"""The code's memory orders are those of one header, and the protocols that a tool checks use them all."""

from __future__ import annotations

import re

import pytest

from tests.engine.memory_model.litmus import BASIC, HEADER, X86, Arm, as_c, as_machine_code, named_orders
from tests.engine.memory_model.protocols import MISSED_RING, PROTOCOLS

CSRC = HEADER.parents[2]
CODE = [*sorted(CSRC.glob("transport/memory/mapped*")), CSRC / "engine/cpu/executor.cpp"]
ORDERS = named_orders(HEADER.read_text())
ATOMIC = r"(?:\.|->)(?:load|store|exchange|fetch_\w+|compare_exchange_\w+)\("


def test_all_orders_are_named() -> None:
    for path in CODE:
        text = path.read_text()
        assert "memory_order" not in text, path
        named = re.findall(r"order::(\w+)", text)
        accesses = len(re.findall(ATOMIC, text)) + text.count("atomic_thread_fence(")
        assert len(named) == accesses, f"{path}: an atomic access without an order"
        assert not {*named} & {*BASIC} - {"relaxed"}, path


def test_all_named_orders_are_used_and_checked() -> None:
    used = {name for path in CODE for name in re.findall(r"order::(\w+)", path.read_text())}
    checked = {order for one in [*PROTOCOLS, MISSED_RING] for order in one.orders}
    assert used - {"relaxed"} == ORDERS.keys() - BASIC.keys()
    assert checked - {"relaxed", "plain", "racing"} == ORDERS.keys() - BASIC.keys()


@pytest.mark.parametrize("protocol", [*PROTOCOLS, MISSED_RING], ids=lambda one: one.name)
def test_all_protocols_can_be_written(protocol) -> None:
    assert as_c(protocol, ORDERS).count("{") == as_c(protocol, ORDERS).count("}")
    for machine in (Arm(exclusive=True), Arm(exclusive=False), X86()):
        assert (
            len({line.count("|") for line in as_machine_code(protocol, ORDERS, machine).splitlines()[2:-1]})
            == 1
        )
