"""The names that users see, the time that importing takes, and what "auto" says."""

from __future__ import annotations

import inspect
import os
import resource
import statistics
import subprocess
import sys

import numpy as np
import pytest

import ringreduce
from tests.conftest import on_processes, on_threads


def public_things():
    for name in ringreduce.__all__:
        thing = getattr(ringreduce, name)
        yield name, thing
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{member}", value


@pytest.mark.parametrize("name, thing", [pytest.param(*pair, id=pair[0]) for pair in public_things()])
def test_everything_public_is_documented(name, thing):
    documentation = inspect.getdoc(thing)
    assert documentation and len(documentation) > 10, name


def test_all_names_exist_and_are_sorted():
    assert sorted(ringreduce.__all__) == list(ringreduce.__all__)
    assert all(hasattr(ringreduce, name) for name in ringreduce.__all__)


def cpu_time(code):
    """Processor time: other programs matter less to it than to a clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_importing_is_quicker_than_importing_numpy_and_leaves_torch_alone():
    ours, numpys = [], []
    for _ in range(5):
        ours.append(cpu_time("import sys, ringreduce; sys.exit('torch' in sys.modules)"))
        numpys.append(cpu_time("import numpy"))
    assert statistics.median(ours) < statistics.median(numpys)


def test_auto_chooses_for_every_collective_world_and_size():
    names = {
        c: {e.name for e in ringreduce.algorithms(c)} for c in {e.collective for e in ringreduce.algorithms()}
    }
    for world in (1, 2, 3, 8, 13, 64):
        comm = ringreduce.local_group(world)[0]
        for collective, known in names.items():
            for bytes_ in [0, 1, *(1 << i for i in range(1, 40, 3))]:
                choice = comm.explain(bytes_, collective)
                assert choice.algorithm in known and choice.slice_bytes > 0 and choice.reason
                assert choice.algorithm in repr(choice)


def test_an_environment_variable_overrides_auto(monkeypatch):
    def rank_main(comm):
        choice = comm.explain(1000)
        assert (comm.all_reduce(np.ones(10)) == 2).all()
        return choice.algorithm, choice.reason, comm.explain(8, "broadcast").algorithm

    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "all_reduce=swing,broadcast=chain")
    assert on_threads(2, rank_main)[0] == ("swing", "set by RINGREDUCE_ALGORITHM", "chain")
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "ring")
    assert on_threads(2, rank_main)[0][0] == "ring"
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "auto")
    on_threads(2, rank_main)
    monkeypatch.setenv("RINGREDUCE_ALGORITHM", "rings")
    with pytest.raises(ValueError, match=r"RINGREDUCE_ALGORITHM.*rings"):
        ringreduce.local_group(2)


def test_what_a_communicator_says_about_itself():
    def rank_main(comm):
        return repr(comm), comm.transport, comm.local_rank, comm.host, comm.hosts, comm.memory_held > 0

    assert on_threads(2, rank_main)[1][1:] == ("local", 1, 0, [[0, 1]], True)
    assert on_processes(2, rank_main)[1] == (
        "<ringreduce.Communicator rank 1 of 2 over shm>", "shm", 1, 0, [[0, 1]], True)  # fmt: skip


def test_the_modules_own_functions():
    assert not ringreduce.is_initialized()
    with pytest.raises(ringreduce.Error, match="init"):
        ringreduce.all_reduce(np.ones(3))
    comm = ringreduce.init()
    try:
        assert comm.size == 1 and ringreduce.world() is comm and ringreduce.is_initialized()
        assert ringreduce.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
        assert ringreduce.all_gather(np.ones(3)).tolist() == [1, 1, 1]
        assert ringreduce.barrier() is None and ringreduce.explain(8, wire="bf16").algorithm
        assert ringreduce.all_gather_object("one") == ["one"] == ringreduce.gather_object("one")
        assert ringreduce.broadcast_object("one") == "one" == ringreduce.scatter_object(["one"])
        comm.close()
        assert not ringreduce.is_initialized()
    finally:
        ringreduce.finalize()
    ringreduce.finalize()
    with pytest.raises(ringreduce.Error, match="init"):
        ringreduce.world()


def _sum_of_its_own_world(_comm):
    with pytest.raises(ringreduce.Error, match="init"):
        ringreduce.world()
    with ringreduce.init(0, 1) as own:
        assert ringreduce.world() is own
        return float(ringreduce.all_reduce(np.ones(1))[0])


def test_a_forked_child_has_no_part_in_its_parents_world():
    with ringreduce.init(0, 1):
        assert ringreduce.run(_sum_of_its_own_world, 1) == [1.0]


def test_run():
    assert ringreduce.run(lambda comm, a, b: (comm.rank, a + b), 3, 1, 2) == [(0, 3), (1, 3), (2, 3)]
    with pytest.raises(ringreduce.RankFailed, match="rank 1 failed") as caught:
        ringreduce.run(lambda comm: 1 / comm.rank - 1 / (comm.rank - 1) if comm.rank else comm.barrier(), 2)
    assert caught.value.rank == 1 and isinstance(caught.value.__cause__, ZeroDivisionError)
    assert os.getpid() not in ringreduce.run(lambda comm: os.getpid(), 2)
