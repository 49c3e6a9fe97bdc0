"""What is known of an MPI library, and what is built for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringreduce.build import mpi_library as library
from ringreduce.build import on_first_use as building
from ringreduce.build.mpi_library import MpiLibrary
from ringreduce.frameworks import mpi as interposer

OPEN_MPI = MpiLibrary(
    Path("/opt/bin/mpicc"),
    ("-I/opt/include", "-L/opt/lib", "-lmpi"),
    {
        "MPI_VERSION": "3",
        "MPI_SUBVERSION": "1",
        "OMPI_MAJOR_VERSION": "5",
        "OMPI_MINOR_VERSION": "0",
        "OMPI_RELEASE_VERSION": "11",
    },
)
MPICH = replace(OPEN_MPI, macros={"MPI_VERSION": "4", "MPICH_VERSION": '"4.2.1"'})
INTEL = replace(MPICH, macros=MPICH.macros | {"I_MPI_VERSION": '"2021.14"'})


@pytest.mark.parametrize(
    ("mpi", "family", "name"),
    [
        (OPEN_MPI, "openmpi", "Open MPI 5.0.11"),
        (MPICH, "mpich", "MPICH 4.2.1"),
        (INTEL, "other", "Intel MPI 2021.14"),
    ],
)
def test_whose_it_is(mpi, family, name):
    assert (mpi.family, mpi.name) == (family, name)


def test_units():
    names = {path.name for path in interposer.units(OPEN_MPI)}
    assert "fortran_openmpi.cpp" in names and "large_functions_of_c.cpp" not in names
    others = {path.name for path in interposer.units(MPICH)}
    assert "fortran_openmpi.cpp" not in others and "large_functions_of_c.cpp" in others
    assert names & others >= {"seat.cpp", "functions_of_c.cpp"}


def test_key_changes_with_the_library():
    others = [
        replace(OPEN_MPI, mpicc=Path("/usr/bin/mpicc")),
        replace(OPEN_MPI, flags=("-I/usr/include", "-lmpi")),
        replace(OPEN_MPI, macros=OPEN_MPI.macros | {"OMPI_RELEASE_VERSION": "12"}),
        MPICH,
    ]
    keys = {building.key(interposer.recipe(mpi)) for mpi in [OPEN_MPI, *others]}
    assert len(keys) == 5
    assert building.key(interposer.recipe(OPEN_MPI)) in keys


def test_what_is_found(mpi):
    found = library.find(str(mpi.mpicc))
    assert found.family == mpi.vendor
    assert found.standard >= (4 if mpi.vendor == "mpich" else 3)
    assert any(flag.startswith("-I") for flag in found.flags) and "-lmpi" in found.flags


def test_a_wrapper_that_must_be_told_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("I_MPI_ROOT", raising=False)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "mpicc"
    wrapper.write_text('#!/bin/sh\necho "gcc -I${I_MPI_ROOT:-SUBSTITUTE}/include -lmpi"\n')
    wrapper.chmod(0o755)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "mpi.h").write_text('#define MPI_VERSION 3\n#define I_MPI_VERSION "2021.14"\n')
    (tmp_path / "link").symlink_to(wrapper)
    for path in (wrapper, tmp_path / "link"):
        assert library.find(str(path)).name == "Intel MPI 2021.14"
    monkeypatch.setenv("I_MPI_ROOT", "/of/another")
    with pytest.raises(library.NoMpi, match=r"status 1: .*mpi\.h: No such file"):
        library.find(str(wrapper))
