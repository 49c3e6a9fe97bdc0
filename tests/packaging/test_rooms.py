"""Every room of ringreduce/ imports only what lies below it, and there is no circle. README.md shows the rooms."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "ringreduce"

# What the modules of a room import, beside the room itself. A module belongs to the longest name that fits.
GROUND = [
    "_engine",
    "annotations",
    "cores",
    "descriptors",
    "doors",
    "environment",
    "errors",
    "hosts",
    "living",
    "log",
    "plotting",
    "requirement",
    "settings",
    "text",
    "traces",
]
STARTED = ["schedules", "build", "communicator", "diagnosis", "start"]
TRAINED = ["start", "communicator", "training.foundation"]
PUBLIC = [""]  # the package's own names, as programs use them
ROOMS = {
    **{name: ["_engine", "descriptors", "environment"] for name in GROUND},
    "annotations": ["schedules"],
    "environment": ["annotations"],
    "": ["schedules", "communicator", "diagnosis", "start", "training"],
    "schedules": [],
    "build": [],
    "communicator": ["schedules"],
    "diagnosis": ["communicator"],
    "start.orphans": [],
    "start.munge": [],
    "start.launchers": ["start.orphans", "start.munge"],
    "start.rendezvous": ["start.launchers", "start.munge"],
    "start.growing": ["communicator", "start.launchers", "start.rendezvous"],
    "start": ["build", "communicator", "diagnosis"],
    "training.foundation": ["communicator"],
    "training.compression": ["communicator", *PUBLIC],
    "training.balance": TRAINED,
    "training.data_parallel": TRAINED,
    "training.sharded_optimizer": TRAINED,
    "training.parameter_server": TRAINED,
    "training.low_communication": [*TRAINED, "training.compression"],
    "training.elastic": [
        *TRAINED, *PUBLIC, "training.data_parallel", "training.low_communication", "training.sharded_optimizer",
    ],
    "training.trainer": [*TRAINED, *PUBLIC, "training"],
    "studies.bench": [*STARTED, *PUBLIC],
    "studies.pages": [],
    "studies.simulate": ["schedules", "communicator"],
    "studies.synthesis": ["communicator", "studies.simulate"],
    "studies.measuring": [*STARTED, "studies.bench"],
    "studies.model": [*STARTED, *PUBLIC, "studies.bench", "studies.measuring", "studies.simulate"],
    "studies.plan": [
        "start", "studies.pages", "studies.simulate", "studies.model", "training", *PUBLIC,
    ],
    "studies.study": [*STARTED, *PUBLIC, "studies"],
    "frameworks.mpi": STARTED,
    "frameworks.torch": STARTED,
    "frameworks.traced": ["schedules", "communicator"],
    "frameworks.jax": [*STARTED, "frameworks.traced"],
    "frameworks.tensorflow": [*STARTED, "frameworks.traced"],
    "frameworks.ray": STARTED,
    "frameworks.torchft": ["frameworks.torch"],
    "frameworks.vllm": ["frameworks.torch"],
    "frameworks.horovod": [
        *STARTED, "frameworks.tensorflow", "frameworks.torch", "frameworks.traced", "training.data_parallel",
    ],
    "commands": ["", *STARTED, "training", "frameworks", "studies"],
}  # fmt: skip
COMMANDS = {"cli", "__main__"}


def room_of(name):
    if COMMANDS & {name, name.split(".")[-1]} or name.endswith(".command"):
        return "commands"
    return max((room for room in ROOMS if f"{name}.".startswith(f"{room}.")), key=len, default="")


def imports(name, text, is_package=False):
    """Yields the names below ringreduce that a module imports, also those inside functions and for type checkers."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            inside = [f"{node.module}.{one.name}" for one in node.names]
            yield from (one if (PACKAGE.parent / one.replace(".", "/")).with_suffix(".py").exists() or
                        (PACKAGE.parent / one.replace(".", "/")).is_dir() or one == "ringreduce._engine"
                        else node.module for one in inside if one != "ringreduce.__version__")  # fmt: skip


def arrows():
    """Yields a module and a name that it imports, both without the package's."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        for imported in imports(name, file.read_text()):
            if imported.split(".")[0] == "ringreduce":
                yield name, imported.removeprefix("ringreduce").removeprefix(".")


def points_upward(name, imported):
    room, target = room_of(name), room_of(imported)
    if target == room or target in GROUND:
        return room in GROUND and target not in (room, *ROOMS[room])
    return not any(
        target == below or (below and f"{imported}.".startswith(f"{below}."))
        for below in (room, *ROOMS[room])
    )


def test_nothing_imports_what_lies_above_it():
    assert [pair for pair in arrows() if points_upward(*pair)] == []


def test_the_rooms_have_no_circle():
    graph = {}
    for name, imported in arrows():
        if room_of(name) != room_of(imported) and imported:
            graph.setdefault(room_of(name), set()).add(room_of(imported))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("errors", "communicator.work"),
        ("schedules.catalogue", "communicator"),
        ("communicator.groups", "start.growing.growth"),
        ("communicator.communicator", "studies.synthesis"),
        ("diagnosis.reporting", "start.bootstrap"),
        ("start.rendezvous.reception", "start.growing.door"),
        ("training.foundation.bucket", "training.data_parallel.wrapper"),
        ("training.data_parallel.wrapper", "training.elastic"),
        ("studies.simulate.simulation", "studies.model"),
        ("frameworks.jax.calls", "frameworks.tensorflow"),
        ("log", "communicator"),
        ("communicator.work", ""),
    ],
)
def test_what_points_upward_is_found(name, imported):
    assert points_upward(name, imported)


def test_a_module_that_was_imported_by_its_own_name_has_its_short_one():
    """As when an actor or a spawned rank unpickles what uses ringreduce.balance."""
    code = "import ringreduce.training.balance as own, ringreduce; assert ringreduce.balance is own"
    subprocess.run([sys.executable, "-c", code], check=True)
