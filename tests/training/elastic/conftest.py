import inspect
import sys
from pathlib import Path

from tests.faults.conftest import over_one_of_both, transport

__all__ = ["transport"]

EACH_OVER_ONE = ("test_grow", "test_losses")  # and single tests of other modules, which ask for it
CHOOSE_THEMSELVES = ("test_partition", "test_training")

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))  # has hosts.py


def pytest_generate_tests(metafunc):
    module = metafunc.module.__name__.rpartition(".")[2]
    asked = "transport" in inspect.signature(metafunc.function).parameters and module not in CHOOSE_THEMSELVES
    if asked or module in EACH_OVER_ONE:
        over_one_of_both(metafunc)
