"""The hand-kept stub of the extension says what the extension has: the same names, the same parameters."""

import ast
import re
from pathlib import Path

import pytest

import ringreduce
from ringreduce import _engine

STUB = ast.parse((Path(ringreduce.__file__).parent / "_engine.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
SUBMODULES = {
    node.target.id: CLASSES[node.annotation.id] for node in STUB.body if isinstance(node, ast.AnnAssign)
}


def functions(nodes):
    return {
        node.name: node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and not any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)
    }


def parameters(node):
    names = [one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    return [name for name in names if name != "self"]


def documented(function):
    """The parameters' names in the signature that nanobind writes; None where they have none."""
    inside = re.search(r"\((.*)\) ->", function.__doc__.splitlines()[0])[1]
    depth, parts = 0, [""]
    for letter in inside:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    names = [part.split(":")[0].split("=")[0].strip() for part in parts]
    return [name for name in names if name not in ("self", "/", "", "*")]


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


def test_names_of_the_module():
    stub = set(functions(STUB.body)) | set(SUBMODULES) | {name for name in CLASSES if name[0] != "_"}
    assert stub == public(_engine)


@pytest.mark.parametrize("name", [name for name in CLASSES if name[0] != "_"])
def test_names_of_a_class(name):
    names = {node.name for node in CLASSES[name].body if hasattr(node, "name")} - {"__init__"}
    assert names == public(getattr(_engine, name))


@pytest.mark.parametrize("name", SUBMODULES)
def test_names_of_a_submodule(name):
    assert set(functions(SUBMODULES[name].body)) == public(getattr(_engine, name))


PLACES = [
    (_engine, functions(STUB.body)),
    *((getattr(_engine, name), functions(CLASSES[name].body)) for name in CLASSES if name[0] != "_"),
    *((getattr(_engine, name), functions(node.body)) for name, node in SUBMODULES.items()),
]


@pytest.mark.parametrize(
    ("owner", "node"),
    [
        pytest.param(owner, node, id=f"{owner.__name__}.{name}")
        for owner, nodes in PLACES
        for name, node in nodes.items()
    ],
)
def test_parameters(owner, node):
    real = documented(getattr(owner, node.name))
    named = [name for name in real if not re.fullmatch(r"arg\d*", name)]
    assert len(parameters(node)) == len(real)
    if named:
        assert parameters(node) == named
