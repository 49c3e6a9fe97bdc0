"""The sources that users' compilers compile, beside an engine that another one has compiled."""

from __future__ import annotations

import pytest

from ringreduce.build import on_first_use as building

FRONTS = ["jax", "mpi/interpose", "mpi/transport", "tensorflow", "torch"]


@pytest.mark.parametrize("front", FRONTS)
def test_sources_share_no_type_that_libstdcxx_has_changed(front):
    """Wheels have an engine compiled with libstdc++ 10. Version 11 swapped the members of std::span."""
    folder = building.csrc() / "fronts" / front
    units = sorted(folder.glob("*.cpp"))
    assert units
    for_torch = sorted(folder.glob("versions/*"))  # a folder for some versions of it, all with the same names
    sources = building.sources(units, [building.csrc(), *for_torch[:1]])
    sources += folder.glob("versions/*/*.h")
    assert not [path for path in sources if "#include <span>" in path.read_text()]
