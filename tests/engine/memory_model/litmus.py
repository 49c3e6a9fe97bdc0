"""Writes a protocol as a litmus test for herd7: in C with C++'s memory orders, and as compilers translate it.

A protocol is a few threads of loads and stores, and an outcome. An order is written by its name in
csrc/transport/interface/orders.h, `plain` for what is no atomic, or `racing` for memory that ranks may use at the
same time after a failure: there the real code has plain accesses, and only a fence says what they may see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parents[3] / "csrc" / "transport" / "interface" / "orders.h"
BASIC = {"relaxed": "relaxed", "acquire": "acquire", "release": "release", "strict": "seq_cst"}


@dataclass(frozen=True)
class Store:
    place: str
    value: int
    order: str = "plain"


@dataclass(frozen=True)
class Load:
    into: str
    place: str
    order: str = "plain"


@dataclass(frozen=True)
class Swap:
    """A read-modify-write: fetch_add and compare_exchange order as this does."""

    place: str
    value: int
    order: str


@dataclass(frozen=True)
class Fence:
    order: str


@dataclass(frozen=True)
class When:
    """Goes on only if what was loaded has that value; the rest of the thread is skipped otherwise."""

    register: str
    value: int


Step = Store | Load | Swap | Fence | When


@dataclass(frozen=True)
class Protocol:
    """``outcome``, in herd's words with ``thread:register``, must not be possible."""

    about: str
    threads: Sequence[Sequence[Step]]
    outcome: str

    @property
    def name(self) -> str:
        return self.about.partition(":")[0].replace(" ", "_")

    @property
    def places(self) -> list[str]:
        return sorted({step.place for step in self.steps if isinstance(step, Store | Load | Swap)})

    @property
    def steps(self) -> list[Step]:
        return [step for thread in self.threads for step in thread]

    @property
    def orders(self) -> set[str]:
        return {step.order for step in self.steps if not isinstance(step, When)}


def named_orders(text: str) -> dict[str, str]:
    """The orders of the header, by name: relaxed, acquire, release or seq_cst."""
    found = dict(re.findall(r"^inline constexpr auto (\w+) = (\w+);", text, re.MULTILINE))
    return {"relaxed": "relaxed", **{name: BASIC[order] for name, order in found.items()}}


def _registers(thread: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(step.into for step in thread if isinstance(step, Load)))


# --- C ------------------------------------------------------------------------------------------------------------


def as_c(protocol: Protocol, orders: Mapping[str, str]) -> str:
    plain = {s.place for s in protocol.steps if isinstance(s, Store | Load) and s.order == "plain"}
    arguments = ", ".join(f"{'int' if p in plain else 'atomic_int'}* {p}" for p in protocol.places)
    text = f"C {protocol.name}\n{{}}\n"
    for number, thread in enumerate(protocol.threads):
        text += f"P{number}({arguments}) {{\n" + "".join(f"  int r_{r} = 0;\n" for r in _registers(thread))
        text += "\n".join(_c_lines(thread, {**orders, "racing": "relaxed"})) + "\n}\n"
    outcome = re.sub(r"(\d:)", r"\1r_", protocol.outcome)
    return f"{text}exists ({outcome})\n"


def _c_lines(thread: Sequence[Step], orders: Mapping[str, str]) -> Iterator[str]:
    for step in thread:
        match step:
            case Store(place, value, "plain"):
                yield f"  *{place} = {value};"
            case Store(place, value, order):
                yield f"  atomic_store_explicit({place}, {value}, memory_order_{orders[order]});"
            case Load(into, place, "plain"):
                yield f"  r_{into} = *{place};"
            case Load(into, place, order):
                yield f"  r_{into} = atomic_load_explicit({place}, memory_order_{orders[order]});"
            case Swap(place, value, order):
                yield f"  atomic_exchange_explicit({place}, {value}, memory_order_{orders[order]});"
            case Fence(order):
                yield f"  atomic_thread_fence(memory_order_{orders[order]});"
            case When(register, value):
                yield f"  if (r_{register} == {value}) {{"
    yield "  }" * sum(isinstance(step, When) for step in thread)


# --- machine code -------------------------------------------------------------------------------------------------


class Arm:
    """As GCC translates the orders. ``exclusive``: without the atomic instructions of ARM 8.1.

    An acquiring load is LDAPR, which orders less than the LDAR that compilers use if they do not know better.
    """

    head = "AArch64"

    def __init__(self, exclusive: bool) -> None:
        self.exclusive = exclusive

    def address(self, k: int) -> str:
        return f"X{20 + k}"

    def register(self, k: int) -> str:
        return f"X{k}"

    def store(self, k: int, value: int, order: str) -> list[str]:
        return [f"MOV W10,#{value}", f"{'STR' if order == 'relaxed' else 'STLR'} W10,[X{20 + k}]"]

    def load(self, into: int, k: int, order: str) -> list[str]:
        name = {"relaxed": "LDR", "acquire": "LDAPR", "seq_cst": "LDAR"}[order]
        return [f"{name} W{into},[X{20 + k}]"]

    def swap(self, k: int, value: int, order: str) -> list[str]:
        acquires, releases = order in ("acquire", "acq_rel", "seq_cst"), order not in ("relaxed", "acquire")
        if not self.exclusive:
            name = f"SWP{'A' * acquires}{'L' * releases}"
            return [f"MOV W10,#{value}", f"{name} W10,W11,[X{20 + k}]"]
        load, store = f"LD{'A' * acquires}XR", f"ST{'L' * releases}XR"
        # A store that fails would be tried again: here the thread ends, and with it what it could show.
        return [
            *(f"MOV W10,#{value}", f"{load} W11,[X{20 + k}]", f"{store} W12,W10,[X{20 + k}]"),
            "CBNZ W12,END",
        ]

    def fence(self, order: str) -> list[str]:
        return [] if order == "relaxed" else ["DMB ISHLD" if order == "acquire" else "DMB ISH"]

    def when(self, register: int, value: int) -> list[str]:
        return [f"CMP W{register},#{value}", "B.NE END"]


class X86:
    head = "X86"

    def address(self, k: int) -> str:
        return ""

    def register(self, k: int) -> str:
        return ("EAX", "EBX", "ECX", "EDX")[k]

    def store(self, k: int, value: int, order: str) -> list[str]:
        return [f"MOV [x{k}],${value}", *(["MFENCE"] if order == "seq_cst" else [])]

    def load(self, into: int, k: int, order: str) -> list[str]:
        return [f"MOV {self.register(into)},[x{k}]"]

    def swap(self, k: int, value: int, order: str) -> list[str]:
        return [f"MOV ESI,${value}", f"XCHG [x{k}],ESI"]

    def fence(self, order: str) -> list[str]:
        return ["MFENCE"] if order == "seq_cst" else []

    def when(self, register: int, value: int) -> list[str]:
        return [f"CMP {self.register(register)},${value}", "JNE END"]


def as_machine_code(protocol: Protocol, orders: Mapping[str, str], machine: Arm | X86) -> str:
    """Plain accesses are what relaxed ones are: a load and a store."""
    known = {**orders, "plain": "relaxed", "racing": "relaxed"}
    place = {name: k for k, name in enumerate(protocol.places)}
    columns, start, outcome = [], "", protocol.outcome
    for number, thread in enumerate(protocol.threads):
        numbered = {name: k for k, name in enumerate(_registers(thread))}
        for name, k in numbered.items():
            outcome = re.sub(rf"\b{number}:{name}\b", f"{number}:{machine.register(k)}", outcome)
        columns.append([f"P{number}", *_machine_lines(thread, known, place, numbered, machine, f"E{number}")])
        for k in place.values():
            if machine.address(k):
                start += f"{number}:{machine.address(k)}=x{k}; "
    depth = max(map(len, columns))
    rows = zip(*(column + [""] * (depth - len(column)) for column in columns), strict=True)
    code = "\n".join(" " + " | ".join(f"{cell:26}" for cell in row) + " ;" for row in rows)
    return f"{machine.head} {protocol.name}\n{{ {start}}}\n{code}\nexists ({outcome})\n"


def _machine_lines(
    thread: Sequence[Step],
    orders: Mapping[str, str],
    place: Mapping[str, int],
    register: Mapping[str, int],
    machine: Arm | X86,
    end: str,
) -> Iterator[str]:
    lines: list[str] = []
    for step in thread:
        match step:
            case Store(name, value, order):
                lines += machine.store(place[name], value, orders[order])
            case Load(into, name, order):
                lines += machine.load(register[into], place[name], orders[order])
            case Swap(name, value, order):
                lines += machine.swap(place[name], value, orders[order])
            case Fence(order):
                lines += machine.fence(orders[order])
            case When(name, value):
                lines += machine.when(register[name], value)
    yield from (line.replace("END", end) for line in lines)
    if any("END" in line for line in lines):
        yield f"{end}:"
