"""What the part for JAX is compiled from, and that an installation carries all of it."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

import jaxlib
from installation import by_make, install

from ringreduce import building
from ringreduce.jax import library


def test_sources_are_the_front_and_the_handlers():
    recipe = library.recipe()
    paths = building.sources(recipe.units, recipe.includes)
    names = {path.relative_to(building.csrc()).as_posix() for path in paths}
    assert {"jax/handlers.cpp", "front/group.h", "engine/planning/call.h"} <= names
    assert not [name for name in names if name.startswith(("transport", "bindings", "torch"))]


@by_make
def test_sources_are_installed(tmp_path):
    installed = install(tmp_path) / "csrc"
    recipe = library.recipe()
    for source in building.sources(recipe.units, recipe.includes):
        assert (installed / source.relative_to(building.csrc())).read_bytes() == source.read_bytes()


def test_another_jaxlib_gets_another_build(monkeypatch):
    before = building.key(library.recipe())
    assert building.key(library.recipe()) == before
    monkeypatch.setattr(jaxlib, "__version__", "9.9.9")
    assert building.key(library.recipe()) != before
