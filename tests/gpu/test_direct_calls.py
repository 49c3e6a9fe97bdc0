"""Ranks that are processes combine directly what lies in each other's memory, as soon as they have mapped it."""

from __future__ import annotations

import pytest

from .limits import MOST_PROCESSES
from .programs import goes_well
from .ranks import ON_EITHER

pytestmark = ON_EITHER
# Of the emulated GPU, in which all other memory that tests use can be shared.
SETTINGS = {"RINGREDUCE_EMULATED_BLOCKS": "64", "RINGREDUCE_EMULATED_SHARED": str(8 << 20)}


@pytest.mark.parametrize(
    ("what", "world"),
    [
        *((what, 2) for what in ("collectives", "reallocated", "many", "unlike", "registered")),
        *((what, MOST_PROCESSES) for what in ("freed", "pieces")),
        *(("collectives", world) for world in range(3, MOST_PROCESSES + 1)),
        pytest.param("killed", MOST_PROCESSES, marks=pytest.mark.kills),
        pytest.param("registered_and_killed", 3, marks=pytest.mark.kills),
    ],
)
def test_direct_calls(what, world):
    goes_well("-m", "tests.gpu.programs_of_direct_calls", what, world, **SETTINGS)
