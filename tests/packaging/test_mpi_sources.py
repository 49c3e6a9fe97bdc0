"""What the interposer is compiled from, and that an installation carries all of it."""

from __future__ import annotations

from pathlib import Path

from installation import by_make, install

from ringreduce.build import on_first_use as building
from ringreduce.build.mpi_library import MpiLibrary
from ringreduce.frameworks import mpi as interposer

MPI = MpiLibrary(Path("mpicc"), (), {"MPI_VERSION": "4", "OMPI_MAJOR_VERSION": "6"})


def test_sources_are_the_front_and_what_is_in_it():
    recipe = interposer.recipe(MPI)
    names = {
        path.relative_to(building.csrc()).as_posix()
        for path in building.sources(recipe.units, recipe.includes)
    }
    assert {"fronts/mpi/interpose/seat.h", "fronts/shared/group.h", "engine/planning/call.h"} <= names
    assert not [name for name in names if name.startswith(("transport", "fronts/python", "fronts/torch"))]


@by_make
def test_sources_are_installed(tmp_path):
    installed = install(tmp_path) / "csrc"
    recipe = interposer.recipe(MPI)
    for source in building.sources(recipe.units, recipe.includes):
        assert (installed / source.relative_to(building.csrc())).read_bytes() == source.read_bytes()
