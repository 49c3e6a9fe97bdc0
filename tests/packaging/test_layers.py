"""Every room of csrc/ includes only what lies below it, and none includes itself by way of others.

    python tests/packaging/test_layers.py [CSRC]

prints which folder includes which, how often, and a circle if there is one.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# What the files of a room include, beside the room itself. A file belongs to the longest name that fits.
INTERFACE = ["transport/interface"]
SOCKETS = [*INTERFACE, "transport/remote", "transport/tcp"]
PROGRAM = ["engine/program", "schedule", "reduce", "transport/interface"]
ENGINE = ["engine", "schedule", "simulate", "synthesis", "reduce", "transport"]
SHARED = ["fronts/shared", "engine/planning"]
ROOMS = {
    "schedule": [],
    "simulate": ["schedule"],
    "synthesis": ["schedule", "simulate"],
    "reduce": [],
    "transport/interface": [],
    "transport/memory": [*INTERFACE, "reduce/string_copy.h"],
    "transport/remote": INTERFACE,
    "transport/tcp": [*INTERFACE, "transport/remote"],
    "transport/ofi": [*SOCKETS, "transport/memory"],
    "transport/compose": [*SOCKETS, "transport/memory", "transport/ofi"],
    "engine/program": PROGRAM,
    "engine/planning": [*PROGRAM, "simulate", "synthesis"],
    "engine/messages": ["engine/planning/call.h", "reduce", *INTERFACE],
    "engine/endings": ["engine/planning/description.h", *INTERFACE],
    "engine/cpu": [*PROGRAM, "engine/endings/contract.h", "engine/planning/plan.h"],
    "engine/accounting": ["engine/planning", "schedule", *INTERFACE, "transport/memory"],
    "engine/device": ["engine/messages/transfer.h", "engine/planning/call.h", *INTERFACE],
    "engine/calls": [
        *("engine/accounting", "engine/cpu", "engine/device/options.h", "engine/endings", "engine/messages"),
        *("engine/planning", *INTERFACE),
    ],
    "engine/communicator": ENGINE,
    "gpu/reduce": ["reduce"],
    "gpu/device": [*INTERFACE, "gpu/reduce"],
    "gpu/libnccl": [*INTERFACE, "reduce"],
    "gpu/runner": ["gpu/device", *ENGINE],
    "gpu/copy_engine": ["gpu/device", "gpu/runner", *ENGINE],
    "gpu/kernels": ["gpu/copy_engine", "gpu/device", "gpu/reduce", "gpu/runner", *ENGINE],
    "gpu/nccl": ["gpu/device", "gpu/kernels", "gpu/libnccl", "gpu/reduce", "gpu/runner", *ENGINE],
    "gpu/hosts": ["gpu/device", "gpu/runner", *ENGINE],  # its parts are groups
    "gpu/calls": ["gpu", *ENGINE],
    "fronts/shared": ENGINE,
    "fronts/python": ["fronts/shared", *ENGINE],
    "fronts/nccl": ["gpu", *ENGINE],
    "fronts/torch": SHARED,
    "fronts/jax": SHARED,
    "fronts/tensorflow": SHARED,
    "fronts/mpi": [*SHARED, "reduce", "transport"],
}


def room_of(name: str) -> str | None:
    return max((room for room in ROOMS if name.startswith(room + "/")), key=len, default=None)


def includes(csrc: Path = CSRC) -> Iterator[tuple[str, str]]:
    for file in sorted(csrc.rglob("*.*")):
        if file.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            for included in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
                if "/" in included:
                    yield file.relative_to(csrc).as_posix(), included


def points_upward(name: str, included: str) -> bool:
    room = room_of(name)
    return not any(included == below or included.startswith(below + "/") for below in [room, *ROOMS[room]])


def arrows(
    place_of: Callable[[str], str | None], found: Iterable[tuple[str, str]]
) -> Counter[tuple[str | None, str | None]]:
    """Returns which place includes which other one, and how often."""
    pairs = ((place_of(name), place_of(included)) for name, included in found)
    return Counter((above, below) for above, below in pairs if above != below)


def circle(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the places of a circle, the first one again at the end; empty: there is none."""
    below: dict[str, set[str]] = {}
    for above, place in pairs:
        below.setdefault(above, set()).add(place)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_file_is_in_a_room():
    assert {name for name, _ in includes() if room_of(name) is None} == set()


def test_nothing_includes_what_lies_above_it():
    assert [
        f"{name} includes {included}" for name, included in includes() if points_upward(name, included)
    ] == []


def test_no_room_includes_itself_by_way_of_others():
    assert circle(arrows(room_of, includes())) == []


def test_a_build_without_gpus_needs_nothing_of_the_wing():
    """CMake leaves out both folders."""
    users = {name for name, included in includes() if included.startswith("gpu/")}
    assert {name for name in users if not name.startswith(("gpu/", "fronts/nccl/"))} == set()


@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("schedule/ring.cpp", "engine/communicator/communicator.h"),
        ("transport/memory/shm.cpp", "transport/tcp/tcp.h"),
        ("gpu/device/library.h", "gpu/kernels/boxes.h"),
        ("engine/program/program.cpp", "engine/planning/plan.h"),
        ("engine/calls/work.h", "fronts/shared/group.h"),
        ("engine/communicator/communicator.cpp", "gpu/calls/watch.h"),
        ("fronts/torch/backend.cpp", "engine/communicator/communicator.h"),
    ],
)
def test_what_points_upward_is_found(name, included):
    assert points_upward(name, included)


@pytest.mark.parametrize(
    ("pairs", "found"), [(["ab", "bc", "ac"], ""), (["ab", "ba"], "ab"), (["ab", "bc", "cd", "db"], "bcd")]
)
def test_circles_are_found(pairs, found):
    assert set(circle(map(tuple, pairs))) == set(found)


def folder_of(name: str, depth: int) -> str:
    return "/".join(name.split("/")[:-1][:depth])


def print_arrows(csrc: Path) -> None:
    for depth, what in ((1, "wings"), (2, "folders")):
        found = arrows(lambda name, depth=depth: folder_of(name, depth), includes(csrc))
        for (above, below), count in sorted(found.items()):
            print(f"{above:24} -> {below:24} {count:4}")
        around = " -> ".join(circle(found)) or "none"
        print(f"{len(found)} arrows among {what}, {sum(found.values())} includes; a circle: {around}\n")


if __name__ == "__main__":
    print_arrows(Path(sys.argv[1]) if len(sys.argv) > 1 else CSRC)
