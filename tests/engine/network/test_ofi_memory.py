"""Large messages over libfabric: read where they are, from registered memory, as each provider demands it."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from fabric import SCENARIO, needs_headers, over, said

import ringreduce
from tests.conftest import needs_libfabric, slow_rows, slowly

pytestmark = [needs_libfabric, needs_headers]

EFA = "local,short,shuffled,delivered"  # its messages have 8 KiB, and arrive in any order
VERBS = "local,few"

# What all providers may demand or lack; libfabric_shim.c explains it.
QUICK = ["unread", "local,bound,few", EFA]
REST = [
    *("short", "deaf", "automatic", "delivered", "shuffled", "plain", "local", "bound", "few", "full"),
    *(VERBS, "plain,local", "unread,local", "local,full", "unread,short,shuffled", "plain,bound,shuffled"),
]
SLOW = [
    *(("tcp", what) for what in REST),
    *(
        (provider, what)
        for provider in ("tcp;ofi_rxm", "udp;ofi_rxd", "shm", "sockets")
        for what in (EFA, VERBS, "unread", "bound,full")
    ),
]


def scenario(name):
    """A rank that calls a function of this file, and prints what it returns."""
    return SCENARIO.replace(
        "from rank import collectives", f"from test_ofi_memory import {name} as collectives"
    )


@pytest.mark.parametrize(
    ("provider", "what"),
    [("tcp", EFA), *slow_rows(*(("tcp", what) for what in QUICK if what != EFA), *SLOW)],
)
def test_what_providers_demand(provider, what, shim):
    """The shim aborts a rank that does not do what its provider demands."""
    variables = {**shim(what), "RINGREDUCE_OFI_PROVIDER": provider, "RINGREDUCE_OFI_RMA": "1"}
    assert said(variables, variables, program=SCENARIO) == ["ofi", "ofi"]


def _counted(comm, array, calls=4):
    """What a call adds to what the transport counts, once it has been made."""
    for _ in range(3):
        comm.all_reduce(array)
    comm.barrier()
    before = comm.statistics()
    for _ in range(calls):
        array[:] = 1
        comm.all_reduce(array)
        assert (array == comm.size).all()
    return comm.statistics().since(before).counts


def _in_place(comm):
    return _counted(comm, ringreduce.zeros(1 << 20))


@pytest.mark.parametrize("provider", ["tcp", *slowly("tcp;ofi_rxm", "udp;ofi_rxd", "shm", "sockets")])
def test_nothing_is_copied_or_registered_again(provider, monkeypatch):
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", provider)
    monkeypatch.setenv("RINGREDUCE_OFI_RMA", "1")
    for counted in over("ofi", _in_place, 2):
        whole = (
            4 * 4 * (1 << 20)
        )  # of two ranks, each sends and receives as many bytes as the array has, per call
        assert counted["bytes_read_remotely"] == counted["bytes_received"] == counted["bytes_sent"] == whole
        assert counted["bytes_copied_to_send"] == counted["bytes_copied_on_receipt"] == 0
        assert counted["registrations"] == 0


def test_nothing_is_read_remotely_unless_it_pays(monkeypatch):
    """Sockets carry what is read as they carry messages."""
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", "tcp")
    for counted in over("ofi", _in_place, 2):
        assert counted["bytes_sent"] > 0 == counted["bytes_read_remotely"] == counted["registrations"]


def _from_malloc(comm):
    room = np.frombuffer(bytearray(1 << 20), "float32")
    return _counted(comm, room)


@pytest.mark.slow
def test_memory_from_elsewhere_is_copied_if_the_provider_demands_that_it_is_registered(shim):
    program = scenario("_from_malloc")
    for what, copies in (("local", True), ("plain", False)):
        variables = {**shim(what), "RINGREDUCE_OFI_PROVIDER": "tcp", "RINGREDUCE_OFI_RMA": "1"}
        for line in said(variables, variables, program=program):
            counted = ast.literal_eval(line)
            assert (counted["bytes_copied_to_send"] > 0) == copies, line
            assert counted["registrations"] == 0, line


def _in_many_places(comm):
    """1,000 arrays, twice; the registrations of the second time, and of new arrays in the places of old ones."""
    arrays = [ringreduce.zeros(10_000, "float32") for _ in range(1000)]

    def use(some):
        before = comm.statistics()
        for array in some:
            array[:] = comm.rank
            comm.broadcast(array, comm.size - 1)
            assert (array == comm.size - 1).all()
        return comm.statistics().since(before).counts["registrations"]

    first, again = use(arrays), use(arrays)
    few = arrays[:10]
    use(few)
    same = use(few)
    places = {array.ctypes.data for array in few}
    del arrays, few
    fresh = [ringreduce.zeros(10_000, "float32") for _ in range(10)]
    use(fresh)
    return first, again, same, len(places), use(fresh)


@pytest.mark.parametrize("what", ["few", *slowly("full", "local,few", "local,full")])
def test_many_arrays_stay_within_the_limit_of_regions(what, shim):
    program = scenario("_in_many_places")
    variables = {**shim(what), "RINGREDUCE_OFI_PROVIDER": "tcp", "RINGREDUCE_OFI_RMA": "1"}
    said_by = [ast.literal_eval(line) for line in said(variables, variables, program=program)]
    first, again, same, _, fresh = said_by[1]  # the root, which is read
    assert first >= 1000
    assert again >= 1000
    assert same == fresh == 0


def _in_an_old_place(comm):
    """Whether an array that was made where another one was is registered again."""

    def use(array):
        before = comm.statistics()
        array[:] = comm.rank
        comm.broadcast(array, comm.size - 1)
        assert (array == comm.size - 1).all()
        return comm.statistics().since(before).counts["registrations"]

    found = []
    for _ in range(20):
        array = ringreduce.zeros(1 << 18)
        found.append((array.ctypes.data, use(array), use(array)))
        del array
    return found


def test_an_array_in_the_place_of_a_freed_one_is_registered_again(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_OFI_PROVIDER", "tcp")
    monkeypatch.setenv("RINGREDUCE_OFI_RMA", "1")
    found = over("ofi", _in_an_old_place, 2)[1]
    assert len({address for address, _, _ in found}) < len(found)  # some were
    assert [(first, again) for _, first, again in found] == [(1, 0)] * len(found)
