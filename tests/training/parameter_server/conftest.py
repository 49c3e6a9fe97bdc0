from tests.faults.conftest import over_one_of_both, transport

__all__ = ["transport"]


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.endswith(".test_losses"):
        over_one_of_both(metafunc)
