"""Every room of csrc/ includes only what lies below it: see the table in README.md."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# What the files of a room include, beside the room itself. A file belongs to the longest name that fits.
REDUCE = ["reduce"]
INTERFACE = ["transport/interface"]
PROGRAM = ["engine/program", "schedule", *REDUCE, "transport/interface"]
ENGINE = ["engine", "schedule", "simulate", "synthesis", *REDUCE, "transport"]
ROOMS = {
    "schedule": [],
    "simulate": ["schedule"],
    "synthesis": ["schedule", "simulate"],
    "reduce": [],
    "transport/interface": [],
    "transport/memory": INTERFACE,
    "transport/remote": INTERFACE,
    "transport/tcp": [*INTERFACE, "transport/remote"],
    "transport/compose": [*INTERFACE, "transport/memory", "transport/remote", "transport/tcp"],
    "engine/program": PROGRAM,
    "engine/planning": [*PROGRAM, "simulate", "synthesis"],
    "engine/cpu": [*PROGRAM, "engine/endings/contract.h", "engine/planning/plan.h"],
    "engine/messages": ["engine/planning/call.h", *REDUCE, *INTERFACE],
    "engine/endings": ["engine/planning/description.h", *INTERFACE],
    "engine/accounting": ["engine/planning", "schedule", *INTERFACE, "transport/memory"],
    "engine/device": [],
    "engine/calls": [
        *("engine/accounting", "engine/cpu", "engine/device", "engine/endings", "engine/messages"),
        *("engine/planning", *INTERFACE),
    ],
    "engine/communicator": [*ENGINE, "gpu/calls"],
    "gpu/reduce": REDUCE,
    "gpu/device": [*INTERFACE, "gpu/reduce"],
    "gpu/libnccl": INTERFACE,
    "gpu/runner": ["gpu/device", *ENGINE],
    "gpu/kernels": ["gpu/device", "gpu/reduce", "gpu/runner", *ENGINE],
    "gpu/nccl": ["gpu/device", "gpu/kernels", "gpu/libnccl", "gpu/reduce", "gpu/runner", *ENGINE],
    "gpu/hosts": ["gpu/device", "gpu/runner", *ENGINE],  # its parts are groups
    "gpu/calls": ["gpu", *ENGINE],
    "fronts/shared": ENGINE,
    "fronts/python": ["fronts/shared", "gpu", *ENGINE],
    "fronts/nccl": ["gpu", *ENGINE],
    "fronts/torch": ["fronts/shared", "engine/planning"],
    "fronts/jax": ["fronts/shared"],
    "fronts/tensorflow": ["fronts/shared"],
    "fronts/mpi": ["fronts/shared", "engine/planning", "transport", "reduce"],
}


def room_of(name):
    return max((room for room in ROOMS if name.startswith(room + "/")), key=len, default=None)


def includes():
    for file in sorted(CSRC.rglob("*.*")):
        if file.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            name = file.relative_to(CSRC).as_posix()
            for included in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
                if "/" in included:
                    yield name, included


def points_upward(name, included):
    room = room_of(name)
    allowed = [room, *ROOMS[room]]
    return not any(included == below or included.startswith(below + "/") for below in allowed)


def test_every_file_is_in_a_room():
    assert {name for name, _ in includes() if room_of(name) is None} == set()


def test_nothing_includes_what_lies_above_it():
    assert [
        f"{name} includes {included}" for name, included in includes() if points_upward(name, included)
    ] == []


@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("schedule/ring.cpp", "engine/communicator/communicator.h"),
        ("transport/memory/shm.cpp", "transport/tcp/tcp.h"),
        ("gpu/device/library.h", "gpu/kernels/boxes.h"),
        ("engine/program/program.cpp", "engine/planning/plan.h"),
        ("engine/calls/work.h", "fronts/shared/group.h"),
        ("fronts/torch/backend.cpp", "engine/communicator/communicator.h"),
    ],
)
def test_what_points_upward_is_found(name, included):
    assert points_upward(name, included)
