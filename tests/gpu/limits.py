"""How long tests of a GPU may take, in seconds, and how many processes they have.

A card is there for minutes, so a test that hangs must cost seconds. It should fail before pytest ends its process: CUDA
takes seconds to start in the next one. Processes that share a card take turns, and two show what there is to see.
"""

from __future__ import annotations

from typing import Any

import pytest

from .probe import HAS_CARD

TEST = 10  # on a card, whatever the test's own mark says
PATIENCE = 6.0 if HAS_CARD else 60.0  # of groups, and of waits for what will happen
PROGRAM = 9 if HAS_CARD else 100
MOST_PROCESSES = 2 if HAS_CARD else 3
PLACES = ("/tests/gpu/", "/tests/frameworks/torch/test_cuda.py")


def hold(items: list[Any]) -> None:
    """Called by tests/conftest.py if there are tests of a GPU among the collected ones."""
    for item in items:
        if HAS_CARD and any(place in item.path.as_posix() for place in PLACES):
            item.add_marker(pytest.mark.timeout(TEST), append=False)
