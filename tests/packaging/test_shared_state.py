"""What the threads of a process share is guarded, also where there is no GIL: by what is said here of each name."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ringreduce"

ONE_OPERATION = "each use is one operation of a dict, set or list"
SAME_VALUE = "threads that come at once make the same value"
BY_ONE_THREAD = "only the thread that starts or ends the job"

GUARDS = {
    "communicator/communicator.py": {"_live": "Living"},
    "communicator/world.py": {"_choosing": "the fork", "_of_the_parent": "the fork", "_world": "_choosing"},
    "descriptors.py": {"_held": "_lock", "_lock": "the fork", "_users": "_lock"},
    "diagnosis/reporting.py": {
        "_at_end": ONE_OPERATION, "_lock": "the fork", "_reporter": "_lock", "_started": "_lock",
    },
    "frameworks/horovod/job.py": {"_job": BY_ONE_THREAD},
    "frameworks/horovod/reductions.py": {"_fusions": "the thread that drives the communicator"},
    "frameworks/horovod/tensorflow/bridge.py": {
        "_calls": "_numbering", "_numbers": "_numbering", "_raised": "of each thread",
    },
    "frameworks/horovod/torch/sync_batch_norm.py": {"_groups": "ranks make these calls in order"},
    "frameworks/jax/primitive.py": {"_dropped": ONE_OPERATION, "_known": "Living", "call_p": "the import"},
    "frameworks/tensorflow/operations.py": {"_numbered": SAME_VALUE},
    "frameworks/torch/__init__.py": {"_module": "_loading"},
    "log.py": {
        "_lock": "the fork", "_looked_for_unknown": "_lock", "_pipe": "_lock", "_program_decides": "_lock",
    },
    "schedules/registry.py": {"_files": "_running", "_running": "the fork", "registered": ONE_OPERATION},
    "start/growing/door.py": {"_forking": "of each thread", "_open": "Living"},
    "start/launchers/torchrun.py": {"_stores": SAME_VALUE},
    "training/elastic/default_process_group.py": {"_made_for": BY_ONE_THREAD},
    "training/elastic/first_group.py": {"_to_join": BY_ONE_THREAD},
    "training/parameter_server/server.py": {"_live": "Living"},
}  # fmt: skip

CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("setdefault", "update"),
}  # fmt: skip


def changed(tree: ast.Module) -> set[str]:
    """The names of a module that its functions bind or change."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names |= {*node.names}
        places = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            places = [node.func]
        for place in places:
            if isinstance(place, ast.Attribute | ast.Subscript) and isinstance(place.value, ast.Name):
                names.add(place.value.id)
    return names


def bound(tree: ast.Module) -> set[str]:
    places = [
        place
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for place in getattr(node, "targets", [getattr(node, "target", None)])
    ]
    return {place.id for place in places if isinstance(place, ast.Name)}


def test_every_name_that_changes_has_a_guard():
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if names := changed(tree) & bound(tree):
            found[file.relative_to(PACKAGE).as_posix()] = names
    assert found == {file: {*guards} for file, guards in GUARDS.items()}


def test_locks_that_guard_are_there():
    for file, guards in GUARDS.items():
        text = (PACKAGE / file).read_text(encoding="utf-8")
        for lock in {guard for guard in guards.values() if guard.startswith("_")}:
            assert re.search(rf"^{lock} = threading\.R?Lock\(\)", text, re.MULTILINE), f"{file}: {lock}"
            assert f"with {lock}:" in text, f"{file}: {lock}"


def test_local_statics_of_the_bindings_are_atomic():
    """Others would need the GIL, or could keep it from a thread whose initialiser has let it go."""
    found = [
        f"{file.name}: {line.strip()}"
        for file in sorted((ROOT / "csrc" / "fronts" / "python").glob("*.cpp"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s+static (?!constexpr|std::atomic<)", line)
    ]
    assert found == []
