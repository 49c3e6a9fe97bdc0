from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

if TYPE_CHECKING:
    from fabric import Shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Shim:
    from fabric import Shim

    return Shim(tmp_path_factory.mktemp("shim"))
