"""What the parts for JAX and TensorFlow are compiled from, and that an installation carries all of it."""

from __future__ import annotations

from importlib import import_module

import pytest
from installation import by_make, install

from ringreduce.build import on_first_use as building

PARTS = {
    "jax": ("jaxlib", "fronts/jax/handlers.cpp"),
    "tensorflow": ("tensorflow", "fronts/tensorflow/calls.cpp"),
}
part = pytest.mark.parametrize("framework", PARTS)


def recipe_of(framework):
    pytest.importorskip(framework)
    return import_module(f"ringreduce.{framework}.library").recipe()


@part
def test_sources_are_the_front_and_the_parts(framework):
    recipe = recipe_of(framework)
    paths = building.sources(recipe.units, recipe.includes)
    names = {path.relative_to(building.csrc()).as_posix() for path in paths}
    assert {PARTS[framework][1], "fronts/shared/group.h", "engine/planning/call.h"} <= names
    assert not [name for name in names if name.startswith(("transport", "fronts/python", "fronts/torch"))]


@by_make
@part
def test_sources_are_installed(tmp_path, framework):
    recipe = recipe_of(framework)
    installed = install(tmp_path) / "csrc"
    for source in building.sources(recipe.units, recipe.includes):
        assert (installed / source.relative_to(building.csrc())).read_bytes() == source.read_bytes()


@part
def test_another_version_gets_another_build(monkeypatch, framework):
    before = building.key(recipe_of(framework))
    assert building.key(recipe_of(framework)) == before
    monkeypatch.setattr(import_module(PARTS[framework][0]), "__version__", "9.9.9")
    assert building.key(recipe_of(framework)) != before
