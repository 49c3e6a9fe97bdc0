"""Ways to run every rank of a group inside one test."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from ctypes.util import find_library
from functools import partial
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's wait for work on the cores that ranks need

import numpy as np
import pytest

import ringreduce
from ringreduce.schedules import registry
from tests.settled import settle

# They begin first, so that no worker is left with one at the end: those that take longest, and the last in alphabetical
# order. After one that mostly waits come two that compute.
LONGEST_FILES = [
    "frameworks/torch/test_faults.py",
    "start/running/test_commands.py",
    "communicator/collectives/test_values.py",
    "faults/test_waits.py",
    "frameworks/mpi/test_interposer.py",
    "engine/network/test_fabric_cards.py",
    "faults/test_endings.py",
    "gpu/test_ranks.py",
    "engine/network/test_across_hosts.py",
    "faults/test_point_to_point.py",
    "schedules/test_catalogue.py",
    "training/test_train_modes.py",
    "engine/network/test_reaching.py",
    "gpu/test_wire.py",
    "gpu/test_interpreter.py",
    "faults/test_meeting.py",
    "training/test_train_program.py",
    "training/test_train.py",
    "frameworks/torch/test_endings.py",
    "frameworks/torch/test_torch_suite.py",
    "studies/cli/test_bench.py",
]

os.environ["RINGREDUCE_TUNING"] = "off"  # what is measured where tests run must not change what they find

# A shell's background jobs ignore it, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each array of the emulated GPU is a file, and eight ranks are threads of one process. Shells begin with 1,024.
_, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, 20_000), most_files))


def slowly(*values: Any) -> list[Any]:
    """Parameters of a test that `make test` leaves out."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def slow_rows(*rows: tuple[Any, ...]) -> list[Any]:
    """The same for tests of several parameters. A row has a value for each."""
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


SLOW = 600.0  # seconds for a slow test that has no limit of its own: some need 20 on cores that are free
# Seconds; a hang must fail the test long before pytest's own limit. An emulated processor needs more.
PATIENCE = float(os.environ.get("RINGREDUCE_TEST_PATIENCE", 200))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[bool, int]:
        path = item.path.as_posix()
        found = (number for number, name in enumerate(LONGEST_FILES) if path.endswith(f"/tests/{name}"))
        return item.get_closest_marker("kills") is not None, next(found, len(LONGEST_FILES))

    items.sort(key=place)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))
    if limits := sys.modules.get("tests.gpu.limits"):
        limits.hold(items)


def pytest_collection() -> None:
    gc.disable()  # what imports leave stays, and looking at it takes a tenth of the time


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    found = yield
    # pytest-timeout keeps a dead thread for each test, and a forked child resets the locks of all threads that exist.
    vars(item).pop("cancel_timeout", None)
    return found


def on_group(
    comms: list[Any], function: Callable[..., Any], *args: Any, patience: float = PATIENCE
) -> list[Any]:
    """Runs function(comm, *args) for every communicator in a thread of its own; results in rank order.

    The first exception in time is raised; threads that hang are named, not waited for.
    """
    results: list[Any] = [None] * len(comms)
    failed: list[tuple[int, BaseException]] = []
    over = threading.Semaphore(0)

    def body(rank: int) -> None:
        try:
            results[rank] = function(comms[rank], *args)
        except BaseException as error:
            failed.append((rank, error))
        finally:
            over.release()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(len(comms))]
    for thread in threads:
        thread.start()
    in_time = True
    for _ in threads:
        # After a failure the others have no partner any more: they are left to their timeouts.
        in_time = in_time and not failed and over.acquire(timeout=patience)
    if failed:
        rank, error = failed[0]
        print(f"rank {rank} failed first")
        raise error
    hanging = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert in_time, f"after {patience} s ranks {hanging} still run"
    return results


def on_threads(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 100.0,
    reproducible: bool | None = None,
) -> list[Any]:
    """Runs function(comm, *args) on the ranks of a new local group."""
    comms = ringreduce.local_group(world, timeout=timeout, reproducible=reproducible)
    results = on_group(comms, function, *args)
    for comm in comms:
        comm.close()
    return results


def on_processes(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 100.0,
    reproducible: bool | None = None,
    transport: Any = None,
) -> list[Any]:
    """Runs function(comm, *args) on the ranks of a new group of processes, by default over shared memory."""
    return ringreduce.run(
        function, world, *args, timeout=timeout, reproducible=reproducible, transport=transport
    )


over_tcp = partial(on_processes, transport="tcp")
over_ofi = partial(on_processes, transport="ofi")

# Loading it would replace the signal handlers of all that this process forks (libpsm2), and MPICH's own libfabric.
needs_libfabric = pytest.mark.skipif(find_library("fabric") is None, reason="libfabric is not installed")

BOTH = [
    pytest.param(on_threads, id="local"),
    pytest.param(on_processes, id="shm"),
    pytest.param(over_tcp, id="tcp"),
    pytest.param(over_ofi, id="ofi", marks=[needs_libfabric, pytest.mark.slow]),
]


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    """Algorithms that a test registers are gone after it."""
    before = dict(registry.registered)
    yield
    registry.registered.clear()
    registry.registered.update(before)


@pytest.fixture(autouse=True)
def _no_world_is_left() -> Iterator[None]:
    """The world is the process's, and so the next test's as well."""
    yield
    if ringreduce.is_initialized():
        left = ringreduce.world()
        ringreduce.finalize()
        pytest.fail(f"the test leaves {left!r} as ringreduce.world()")


@pytest.fixture(autouse=True, scope="module")
def _forks_stay_cheap() -> None:
    """Writes after a fork split the huge pages that it shares with its parent."""
    settle()


@pytest.fixture(autouse=True, scope="module")
def _libfabric_is_loaded_by_ranks_alone() -> Iterator[None]:
    yield
    with open("/proc/self/maps") as maps:
        assert not any("/libfabric" in line for line in maps), "its psm2 replaces signal handlers"


@pytest.fixture(params=BOTH)
def on_ranks(request: pytest.FixtureRequest) -> Any:
    """on_threads, on_processes, over_tcp and over_ofi in turn."""
    return request.param


def whole_numbers(count: int, rank: int, dtype: Any = np.float32, most: int = 8) -> Any:
    """Small whole numbers, other ones on every rank: every order of adding them gives the same float."""
    place = np.arange(5 * most)  # after so many they repeat
    return np.resize(((place * 7 + rank * 3 + place // 5 * rank) % most).astype(dtype), count)


def unlike(dtype: Any, count: int) -> Any:
    """A buffer full of what no test expects."""
    return np.full(count, 99).astype(dtype)
