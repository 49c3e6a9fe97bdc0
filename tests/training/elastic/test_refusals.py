"""Newcomers that do not fit, arguments that cannot be used, and processes that do not belong to the job."""

from __future__ import annotations

import contextlib
import os
import secrets
import time

import pytest

import ringreduce
from ringreduce.start.rendezvous import reception
from ringreduce.start.rendezvous.named_places import place_named
from tests.conftest import slowly
from tests.processes import free_port
from tests.training.elastic.ranks import Job, await_newcomers, await_together, described, grown_by


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_SECRET", "the job's")


@pytest.fixture
def hasty(secret, monkeypatch):
    monkeypatch.setattr(reception, "_PATIENCE", 0.3)


def _address():
    return f"tcp://127.0.0.1:{free_port()}"


def _stays_alone(me):
    """A member that lets nobody in."""
    with me.init() as comm:
        comm.pending()
        me.note()
        await_together(comm, me, 2)
        return described(comm)


def _refused(me, text, **options):
    with pytest.raises(ringreduce.Error, match=text):
        me.join(**options)
    me.note()


def _other_version(me):
    from ringreduce.start.growing import origin

    origin.__version__ = "0.0.1"
    _refused(
        me, r"version of ringreduce must be the same: it is '[^']+' in the group, '0.0.1' in the newcomer"
    )


def _other_fingerprint(me):
    _refused(me, "its fingerprint differs", fingerprint="another model")


def _other_order(me):
    _refused(me, "reproducible must be the same: it is False in the group, True", reproducible=True)


def _other_transport(me):
    said = "transport must be the same: it is 'auto' in the group, 'shm' in the newcomer"
    _refused(me, said, transport="shm")


def _with_checksums(me):
    os.environ["RINGREDUCE_TCP_CHECK"] = "1"
    _refused(me, "RINGREDUCE_TCP_CHECK must be the same")


def _encrypting(me):
    os.environ["RINGREDUCE_SECRET"] = "the job's"
    _refused(me, "encrypt must be the same: it is False in the group, True in the newcomer", encrypt=True)


@pytest.mark.parametrize(
    "bad",
    [
        _other_version,
        *slowly(_other_fingerprint, _other_order, _with_checksums, _encrypting, _other_transport),
    ],
)
@pytest.mark.parametrize("network", [*slowly(False), True])
def test_who_does_not_fit_is_told_and_the_group_goes_on(bad, network, secret):
    def member(me):
        with me.init() as comm:
            comm.pending(fingerprint="this model")
            me.note()
            await_together(comm, me, 2)
            return grown_by(comm, 1)

    def newcomer(me):
        me.wait_for(0)
        if me.number == 2:
            return bad(me)
        me.wait_for(2)
        with me.join(fingerprint=b"this model") as comm:
            return described(comm)

    name = _address() if network else ""
    assert Job(member, 2, newcomer, 2, name=name).values() == [(0, 3, 3.0), (1, 3, 3.0), None, (2, 3, 3.0)]


def test_another_secret_is_told(hasty):
    def newcomer(me):
        me.wait_for(0)
        os.environ["RINGREDUCE_SECRET"] = "not the job's"
        _refused(me, "RINGREDUCE_SECRET differs")

    values = Job(_stays_alone, 2, newcomer, 1, name=_address()).values()
    assert values[:2] == [(0, 2, 2.0), (1, 2, 2.0)]


def test_a_newcomer_waits_for_a_group_that_still_starts(hasty):
    """Its greeting comes to the port where the ranks meet, long before the last of them."""

    def member(me):
        if me.number == 1:
            me.wait_for(0)
            time.sleep(4 * reception._PATIENCE)
        me.note()
        with me.init() as comm:
            return grown_by(comm, 1)

    def newcomer(me):
        with me.join() as comm:
            return described(comm)

    values = Job(member, 2, newcomer, 1, name=_address()).values()
    assert values == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]


def test_a_newcomer_whose_group_never_starts_is_told(secret):
    def member(me):
        me.note()
        with pytest.raises(ringreduce.TimeoutError, match=r"ranks \[1\] to start"):
            me.init(timeout=6)

    def newcomer(me):
        if me.number == 2:
            me.wait_for(0)
            with pytest.raises(
                ringreduce.TimeoutError, match=r"the ranks that meet at 127.0.0.1:\d+ are still in init"
            ):
                me.join(timeout=2)

    idle = Job(lambda me: member(me) if me.number == 0 else None, 2, newcomer, 1, name=_address())
    assert idle.values() == [None, None, None]


def test_a_rank_that_should_join_is_told(hasty):
    def newcomer(me):
        me.wait_for(0)
        with pytest.raises(ringreduce.Error, match=r"which only ringreduce.join\(\) leads into"):
            ringreduce.init(1, 2, me.name, timeout=20)
        me.note()

    values = Job(_stays_alone, 2, newcomer, 1, name=_address()).values()
    assert values == [(0, 2, 2.0), (1, 2, 2.0), None]


def test_a_group_with_tls_lets_in_who_has_it(secret):
    def member(me):
        with me.init(encrypt=True) as comm:
            return grown_by(comm, 2)

    def newcomer(me):
        with me.join(encrypt=True) as comm:
            return described(comm)

    values = Job(member, 2, newcomer, 2, name=_address()).values()
    assert sorted(values) == [(rank, 4, 4.0) for rank in range(4)]


def test_strangers_do_not_keep_newcomers_out(secret):
    def member(me):
        with me.init() as comm:
            comm.pending()
            me.note()
            return grown_by(comm, 1)

    def newcomer(me):
        me.wait_for(0)
        place = place_named(me.name)
        with contextlib.ExitStack() as strangers:
            for number in range(200):
                stranger = strangers.enter_context(place.dial(5))
                with contextlib.suppress(OSError):
                    stranger.send(secrets.token_bytes(number))
            with me.join() as comm:
                return described(comm)

    assert Job(member, 2, newcomer, 1, name=_address()).values() == [(0, 3, 3.0), (1, 3, 3.0), (2, 3, 3.0)]


def test_a_changed_fingerprint_turns_away_who_waits():
    def member(me):
        with me.init() as comm:
            await_newcomers(comm, 1)
            assert comm.pending(fingerprint="a new model") == 0
            return described(comm)

    def newcomer(me):
        _refused(me, "its fingerprint differs")

    assert Job(member, 2, newcomer, 1).values()[:2] == [(0, 2, 2.0), (1, 2, 2.0)]


def test_members_with_different_fingerprints():
    def member(me):
        with me.init() as comm:
            for call in (comm.pending, comm.grow):
                with pytest.raises(
                    ValueError, match="fingerprint must be the same on all ranks: it differs on rank 1"
                ):
                    call(fingerprint=str(me.number))
            return described(comm)

    assert Job(member, 2).values() == [(0, 2, 2.0), (1, 2, 2.0)]


def test_nobody_is_there(transport):
    start = time.monotonic()
    with pytest.raises(ringreduce.TimeoutError, match="timed out waiting for a group that lets newcomers in"):
        ringreduce.join(f"nobody/{secrets.token_hex(8)}", timeout=0.3)
    assert time.monotonic() - start >= 0.3


def test_a_group_that_does_not_grow():
    def member(me):
        with me.init() as comm:
            comm.pending()
            while not me.board.read(1):
                comm.barrier()
            return described(comm)

    def newcomer(me):
        with pytest.raises(
            ringreduce.TimeoutError, match=r"after 0.5 s waiting for the group to call grow\(\)"
        ):
            me.join(timeout=0.5)
        me.note()

    assert Job(member, 1, newcomer, 1).values() == [(0, 1, 1.0), None]


def _exchange(blob):
    return [blob]


@pytest.mark.parametrize(
    ("make", "part", "text"),
    [
        (lambda: ringreduce.local_group(1)[0], lambda comm: comm, "made by split"),
        (
            lambda: ringreduce.init(0, 1, f"x/{secrets.token_hex(8)}"),
            lambda comm: comm.split(0),
            "made by split",
        ),
        (lambda: ringreduce.init(0, 1, _exchange), lambda comm: comm, "met through a function"),
    ],
)
def test_groups_without_a_door(make, part, text, transport, monkeypatch):
    monkeypatch.delenv("RINGREDUCE_TRANSPORT")
    with make() as whole, part(whole) as comm:
        for call in (comm.pending, comm.grow):
            with pytest.raises(ValueError, match=text):
                call()
        assert described(comm) == (0, 1, 1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fingerprint": 3}, "fingerprint must be a string, bytes or None, not int"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": None}, "timeout must be a number of seconds, not None"),
        ({"transport": "mpi"}, "a group over the mpi transport cannot grow"),
        (
            {"store": None},
            "no launcher has started this process, so join.. cannot find a group: give it a store",
        ),
        ({"store": "tcp://here"}, "store must be a name, tcp://host:port"),
        ({"store": _exchange}, "met through a function"),
    ],
)
def test_arguments_of_join(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        ringreduce.join(**{"store": "x", "timeout": 1, **options})


@pytest.mark.parametrize("options", [{"fingerprint": 3}, {"timeout": "soon"}])
def test_arguments_of_grow_leave_the_group_usable(options):
    def member(me):
        with me.init() as comm:
            with pytest.raises((ValueError, TypeError), match=next(iter(options))):
                comm.grow(**options)
            return described(comm)

    assert Job(member, 2).values() == [(0, 2, 2.0), (1, 2, 2.0)]


def test_a_process_that_is_alone_can_run_an_elastic_program(transport):
    with ringreduce.init() as comm:
        assert comm.pending() == 0
        with comm.grow() as same:
            assert described(same) == (0, 1, 1.0)
    ringreduce.finalize()
