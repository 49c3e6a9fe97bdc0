"""Statistics: exact counts and bytes, and waits that name the rank that was late."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict

import numpy as np
import pytest

import ringreduce
from ringreduce import diagnosis, schedules
from tests.conftest import on_processes, on_threads, over_tcp


def _counted(statistics):
    return {(one.collective, one.algorithm): (one.calls, one.nbytes) for one in statistics.calls}


def _known_calls(comm):
    x, wide = np.ones(100, "float32"), np.ones(7, "float64")
    for _ in range(7):
        comm.all_reduce(x, algorithm="ring")
    for _ in range(3):
        comm.all_reduce(wide, algorithm="one_shot")
    comm.all_reduce(x, algorithm="ring", async_op=True).wait()
    comm.broadcast(x, algorithm="tree")
    comm.all_gather(np.ones(5, "int32"), algorithm="ring")
    comm.barrier()
    if comm.rank == 0:
        comm.send(x, 1)
        comm.send(x, 1, async_op=True).wait()
    elif comm.rank == 1:
        comm.recv(x, 0)
        comm.recv(x, 0)
    return comm.statistics()


def test_counts_and_bytes_are_exact(on_ranks):
    for rank, found in enumerate(on_ranks(3, _known_calls)):
        counted = _counted(found)
        barrier = counted.pop(next(kind for kind in counted if kind[0] == "barrier"))
        assert barrier == (1, 0)
        expected = {
            ("all_reduce", "ring"): (8, 8 * 400),
            ("all_reduce", "one_shot"): (3, 3 * 56),
            ("broadcast", "tree"): (1, 400),
            ("all_gather", "ring"): (1, 3 * 20),
        }
        messages = {0: {("send", ""): (2, 800)}, 1: {("recv", ""): (2, 800)}}
        assert counted == expected | messages.get(rank, {})
        assert (found.rank, found.size, found.members) == (rank, 3, (0, 1, 2))
        assert found.collectives == 14


def _wide_counts(comm):
    for count in range(1, 300):  # more kinds of calls than plans are kept
        comm.all_reduce(np.ones(count, "float32"), algorithm="ring")
    comm.all_gather(np.ones(comm.rank + 1, "int8"), counts=[1, 2], algorithm="ring")
    return comm.statistics()


def test_many_kinds_of_calls():
    for found in on_threads(2, _wide_counts):
        assert _counted(found) == {
            ("all_reduce", "ring"): (299, 4 * sum(range(1, 300))),
            ("all_gather", "ring"): (1, 3),
        }


def _sleep_before_each(comm, late, algorithm, background, calls, folder):
    x = np.ones(64, "float32")
    for _ in range(20):
        comm.all_reduce(x, algorithm=algorithm)
    comm.barrier()
    comm.reset_statistics()
    for call in range(calls):
        (folder / f"{call}-{comm.rank}").touch()
        if comm.rank == late:
            while len(list(folder.glob(f"{call}-*"))) < comm.size:
                time.sleep(0.01)
            time.sleep(0.15)
        work = comm.all_reduce(x, algorithm=algorithm, async_op=background)
        if background:
            work.wait()
    return comm.all_gather_statistics()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("algorithm", ["one_shot", "ring"])
def test_waits_name_the_rank_that_sleeps(on_ranks, algorithm, background, tmp_path):
    late, calls = 1, 4
    for found in on_ranks(3, _sleep_before_each, late, algorithm, background, calls, tmp_path):
        others = [rank for rank in range(3) if rank != late]
        assert max(found.lateness) == found.lateness[late]
        # It sleeps in each call, and a rank that slept has not waited meanwhile.
        assert found.lateness[late] > max(found.lateness[rank] for rank in others)
        own = [one.waited for one in found.ranks]
        assert own[late] == min(own)
        if algorithm == "one_shot":  # in a ring, one of them waits for the other
            assert max(found.waited_for) == found.waited_for[late]
            for rank in others:
                waits = found.ranks[rank].waits
                assert max(waits, key=lambda peer: waits[peer].seconds) == late
                assert waits[late].count >= calls
                assert waits[late].longest <= waits[late].seconds
                number = waits[late].longest_in
                assert 21 < number <= 21 + calls
        total = sum(wait.seconds for wait in found.ranks[0].waits.values())
        assert found.ranks[0].waited_in_collectives == pytest.approx(total)


def _wait_for_a_message(comm):
    x = np.ones(4, "float32")
    comm.barrier()
    comm.reset_statistics()
    if comm.rank == 1:
        time.sleep(0.3)
        comm.send(x, 0)
    elif comm.rank == 0:
        comm.recv(x, 1)
    return comm.statistics()


def test_waits_for_messages(on_ranks):
    found, other = on_ranks(2, _wait_for_a_message)
    assert list(found.waits) == [1] and found.waits[1].longest_in == 0
    assert found.waited > other.waited
    assert found.waited_in_collectives == 0


def _with_a_long_name(comm):
    def sums(world, rank):
        return schedules.schedule("all_reduce", "ring", world, rank)

    sums.__name__ = "é" * 15  # more bytes than statistics have room for
    comm.all_reduce(np.ones(3), algorithm=sums)
    return [one.algorithm for one in comm.statistics().calls]


def test_a_name_that_is_cut_stays_text():
    for (name,) in on_threads(2, _with_a_long_name):
        assert name and set(name) == {"é"}


def _reset(comm):
    x = np.ones(3, "int64")
    comm.all_reduce(x, algorithm="ring")
    whole = comm.statistics()
    comm.reset_statistics()
    empty = comm.statistics()
    comm.all_reduce(x, algorithm="ring")
    comm.all_reduce(x, algorithm="one_shot")
    return whole, empty, comm.statistics(), [
        one for one in diagnosis.statistics() if one.group == whole.group and one.rank == comm.rank
    ]  # fmt: skip


def test_reset():
    for whole, empty, after, process in on_threads(2, _reset):
        assert _counted(whole) == {("all_reduce", "ring"): (1, 24)}
        assert empty.calls == () and empty.waits == {}
        assert _counted(after) == {("all_reduce", "ring"): (1, 24), ("all_reduce", "one_shot"): (1, 24)}
        assert _counted(process[0]) == {("all_reduce", "ring"): (2, 48), ("all_reduce", "one_shot"): (1, 24)}


def _of_groups(comm):
    x = np.ones(2, "float32")
    half = comm.split(comm.rank % 2, key=-comm.rank)
    half.all_reduce(x, algorithm="ring")
    own = half.statistics()
    half.close()
    last = next(one for one in diagnosis.statistics() if one.group == own.group)
    del half
    import gc

    gc.collect()
    kept = next(one for one in diagnosis.statistics() if one.group == own.group)
    return own, last, kept


def test_groups_keep_their_names_and_their_statistics():
    found = on_processes(4, _of_groups)
    for rank, (own, last, kept) in enumerate(found):
        assert own.members == ((2, 0) if rank % 2 == 0 else (3, 1))
        assert own.members[own.rank] == rank
        assert not own.closed and last.closed and kept.closed
        assert _counted(own) == _counted(last) == _counted(kept) == {("all_reduce", "ring"): (1, 8)}
    groups = [own.group for own, _, _ in found]
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_the_child_of_a_fork_has_no_statistics():
    comm = ringreduce.local_group(1)[0]
    comm.barrier()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        own = ringreduce.local_group(1)[0]
        own.barrier()
        os.write(writing, json.dumps([one.group for one in diagnosis.statistics()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    groups = json.loads(os.read(reading, 4096))
    assert len(groups) == 1 and groups[0] != comm.statistics().group
    comm.close()


def _read_while_it_counts(comm):
    x = np.ones(2, "float32")
    seen, over = [], threading.Event()

    def read():
        while not over.is_set():
            seen.append(sum(one.calls for one in comm.statistics().calls))
            time.sleep(0.001)  # the ranks need Python's lock, too

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(500):
        comm.all_reduce(x)
    over.set()
    reader.join()
    return seen, sum(one.calls for one in comm.statistics().calls)


def test_statistics_while_calls_run():
    for seen, last in on_threads(2, _read_while_it_counts):
        assert seen == sorted(seen) and last == 500


def test_combining_needs_every_rank():
    first, second = on_threads(2, lambda comm: (comm.barrier(), comm.statistics())[1])
    assert diagnosis.GroupStatistics([second, first]).ranks == (first, second)
    with pytest.raises(ValueError, match="ranks must have the statistics of every rank once"):
        diagnosis.GroupStatistics([first])
    with pytest.raises(ValueError, match="ranks must have the statistics of every rank once"):
        diagnosis.GroupStatistics([first, first])
    other = on_threads(2, lambda comm: comm.statistics())[1]
    with pytest.raises(ValueError, match="ranks must have statistics of one group"):
        diagnosis.GroupStatistics([first, other])


def test_tables(tmp_path):
    found = over_tcp(2, _sleep_before_each, 1, "ring", False, 2, tmp_path)[0]
    assert json.loads(json.dumps(asdict(found.ranks[0])))["transport"] == "tcp"
    lines = str(found.ranks[0]).splitlines()
    assert lines[0] == "rank 0: a group of 2 ranks over tcp"
    assert any(line.split()[:4] == ["all_reduce", "ring", "2", "512"] for line in lines)
    assert any(line.split()[:3] == ["rank", "1", str(found.ranks[0].waits[1].count)] for line in lines)
    late = [line.split()[0] for line in str(found).splitlines() if line.endswith(" ms")]
    assert "1" in late
