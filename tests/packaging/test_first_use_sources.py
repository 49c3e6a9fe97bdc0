"""The sources that users' compilers compile, beside an engine that another one has compiled."""

from __future__ import annotations

import pytest

from ringreduce.build import on_first_use as building

FRONTS = ["jax", "mpi/interpose", "mpi/transport", "tensorflow", "torch"]


@pytest.mark.parametrize("front", FRONTS)
def test_sources_share_no_type_that_libstdcxx_has_changed(front):
    """The engine of wheels is compiled with that of version 10. The next swapped the members of std::span."""
    folder = building.csrc() / "fronts" / front
    units = sorted(folder.glob("*.cpp"))
    assert units
    versions = sorted(folder.glob("versions/*"))[-1:]  # torch's headers differ between its versions
    sources = building.sources(units, [building.csrc(), *versions])
    assert not [path for path in sources if "#include <span>" in path.read_text()]
