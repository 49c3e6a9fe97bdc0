"""How ranks find each other: launchers' environments and kinds of stores."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import secrets
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ringreduce
from ringreduce.start import bootstrap
from ringreduce.start.launchers import Launched, launched
from ringreduce.start.launchers.slurm import hosts_of
from tests.processes import Processes

PROGRAM = """
import numpy, ringreduce
comm = ringreduce.init(timeout=20)
x = ringreduce.all_gather(numpy.array([comm.rank]))
print(comm.rank, comm.size, x.tolist())
"""


HYDRA, OF_HYDRA = socket.socketpair()  # this process, an ancestor of the ranks, is at the other end


def environments(job):
    """What two ranks find in their environment, by launcher."""
    for rank in range(2):
        yield {
            "torchrun": {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost",
                         "MASTER_PORT": 1234, "TORCHELASTIC_RUN_ID": job},
            "openmpi": {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "PMIX_NAMESPACE": job},
            "hydra": {"PMI_RANK": rank, "PMI_SIZE": 2, "PMI_FD": OF_HYDRA.fileno()},
            "slurm": {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_JOB_ID": job, "SLURM_STEP_ID": 0},
        }  # fmt: skip


def text(env):
    return {name: str(value) for name, value in env.items()}


@pytest.mark.parametrize("launcher", ["torchrun", "openmpi", "hydra", "slurm"])
def test_launchers(launcher):
    first, second = (text(env[launcher]) for env in environments(secrets.token_hex(8)))
    known = [launched(first), launched(second)]
    assert [(k.launcher, k.rank, k.size) for k in known] == [(launcher, 0, 2), (launcher, 1, 2)]
    assert known[0].job == known[1].job
    others = {**os.environ}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**others, **env},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[OF_HYDRA.fileno()],
        )
        for env in (second, first)
    ]
    printed = sorted(process.communicate(timeout=200)[0].strip() for process in processes)
    assert printed == ["0 2 [0, 1]", "1 2 [0, 1]"]


def test_hosts_of_slurm():
    assert hosts_of("a") == ["a"]
    assert hosts_of("node[03-05,07],other") == ["node03", "node04", "node05", "node07", "other"]
    assert hosts_of("r[1-2]n[08-09].x,b2") == ["r1n08.x", "r1n09.x", "r2n08.x", "r2n09.x", "b2"]
    with pytest.raises(ValueError, match="does not name a host: ''"):
        hosts_of("")


def test_no_launcher():
    assert launched({}) is None
    # What a Slurm batch script finds: it is of no step.
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None
    assert launched({"RANK": "0"}) is None
    comm = ringreduce.init()
    assert (comm.rank, comm.size) == (0, 1) and comm.all_reduce(np.ones(2)).tolist() == [1, 1]
    ringreduce.finalize()


@pytest.mark.parametrize("step", [4294967290, 4294967291, 4294967292, 4294967293])
def test_a_shell_of_salloc_is_no_rank(step):
    """Nor a batch script: srun has started no step that it belongs to. Its SLURM_NTASKS is that of the job."""
    shell = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "7"}
    assert launched(shell | {"SLURM_STEP_ID": str(step)}) is None


def test_the_size_is_that_of_the_step():
    step = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7"}
    assert launched(step | {"SLURM_STEP_ID": "3"}) == ("slurm", 1, 2, "7/3")


PMI = {"PMI_RANK": "0", "PMI_SIZE": "2"}
OMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("left", "named"),
    [
        (PMI, "PMI_RANK and PMI_SIZE"),
        (PMI | {"MPI_LOCALNRANKS": "2", "PMI_FD": "800"}, "PMI_RANK and PMI_SIZE"),
        (PMI | {"MPI_LOCALNRANKS": "1", "PMI_PORT": "localhost:1"}, "PMI_RANK and PMI_SIZE"),
        (OMPI, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        (OMPI | {"PMIX_NAMESPACE": "a", "PMIX_SERVER_TMPDIR": "/no/such"}, "OMPI_COMM_WORLD_RANK"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "^RANK must be an integer, not 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "1.5"}, "^WORLD_SIZE must be an integer"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "^RANK=2 and WORLD_SIZE=2 disagree"),
        (PMI | {"PMI_SIZE": "-1"}, "^PMI_RANK=0 and PMI_SIZE=-1 disagree"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "y"}, "^LOCAL_WORLD_SIZE must be an integer"),
    ],
)
def test_variables_of_no_job_are_named(left, named, monkeypatch):
    """Instead of waiting for ranks that nobody starts."""
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=named):
        ringreduce.init(timeout=300)


@pytest.mark.parametrize("left", [{"RANK": "0"}, {"PMI_RANK": "3"}, {"RANK": "", "WORLD_SIZE": "4"}])
def test_a_rank_without_a_size_is_alone(left, monkeypatch):
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    with ringreduce.init(timeout=300) as comm:
        assert (comm.rank, comm.size) == (0, 1)


def test_launchers_that_start_each_other():
    """srun --mpi=pmi2 sets some of Hydra's variables; an mpirun whose proxies srun has started leaves srun's."""
    step = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    rank = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9"}
    assert launched(step | rank).launcher == "slurm"
    assert launched(step | rank | {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"})[:3] == (
        "hydra",
        5,
        8,
    )
    mpirun = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_NAMESPACE": "a"}
    assert launched(step | mpirun)[:3] == ("openmpi", 5, 8)


def test_jobs_do_not_mix():
    jobs = [next(environments(job))["openmpi"] for job in ("a", "b")]
    assert launched(text(jobs[0])).job != launched(text(jobs[1])).job


class Store(dict):
    """Blocks until a key is there."""

    def __init__(self):
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self, 20)
            return self[key]


class Meeting:
    """An exchange between threads."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size)
        self.blobs = [b""] * size

    def of(self, rank):
        def exchange(blob):
            self.blobs[rank] = blob
            self.barrier.wait(20)
            blobs = list(self.blobs)
            self.barrier.wait(20)
            return blobs

        return exchange


class LikeMpi4py:
    def __init__(self, exchange, rank, size):
        self.allgather, self.rank, self.size = exchange, rank, size

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size


def in_threads(function):
    results, threads = {}, []
    for rank in range(2):
        threads.append(threading.Thread(target=lambda rank=rank: results.update({rank: function(rank)})))
        threads[-1].start()
    for thread in threads:
        thread.join(40)
    return [results[rank] for rank in range(2)]


def use(comm):
    with comm:
        return comm.all_gather(np.array([comm.rank])).tolist()


def test_a_name():
    name = secrets.token_hex(8)
    assert in_threads(lambda rank: use(ringreduce.init(rank, 2, name, timeout=20))) == [[0, 1]] * 2


def test_a_function():
    meeting = Meeting(2)
    assert (
        in_threads(lambda rank: use(ringreduce.init(rank, 2, meeting.of(rank), timeout=20))) == [[0, 1]] * 2
    )


def test_an_mpi_communicator():
    meeting = Meeting(2)
    given = [LikeMpi4py(meeting.of(rank), rank, 2) for rank in range(2)]
    assert in_threads(lambda rank: use(ringreduce.init(store=given[rank], timeout=20))) == [[0, 1]] * 2


CHILD = """
import sys, numpy, ringreduce
rank, port = int(sys.argv[1]), int(sys.argv[2])
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", port, 2, rank == 0)
for _ in range(2):
    comm = ringreduce.init(rank, 2, store, timeout=20)
    print(comm.all_gather(numpy.array([rank])).tolist(), flush=True)
store.set(f"over{rank}", b"1")
store.get("over0"), store.get("over1")
"""


@pytest.mark.slow
def test_a_tcp_store():
    pytest.importorskip("torch")
    port = str(29_000 + os.getpid() % 2000)
    processes = [
        subprocess.Popen([sys.executable, "-c", CHILD, str(rank), port], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=200)[0].split("\n")[:2] for process in processes] == [
        ["[0, 1]"] * 2
    ] * 2


def test_a_store():
    store = Store()
    assert in_threads(lambda rank: use(ringreduce.init(rank, 2, store, timeout=20))) == [[0, 1]] * 2


class Folder:
    """A store for processes."""

    def __init__(self, path):
        self.path = path

    def at(self, key):
        return self.path / key.replace("/", "-")

    def set(self, key, value):
        own = self.path / f"{os.getpid()}.new"
        own.write_bytes(value)
        own.rename(self.at(key))

    def get(self, key):
        while not self.at(key).exists():
            time.sleep(0.001)
        return self.at(key).read_bytes()


def test_a_process_is_another_rank_in_the_next_group(tmp_path):
    """As when a launcher numbers the ranks that go on anew."""
    store, groups = Folder(tmp_path), [(0, 1), (1, 2), (2, 1, 0), (0, 2)]

    def process(number, pipe):
        found = []
        for turn, members in enumerate(groups):
            if turn > 0:
                store.get(f"met-{turn - 1}")
            if number in members:
                rank = members.index(number)
                found.append(use(ringreduce.init(rank, len(members), store, timeout=20)))
                store.set(f"met-{turn}", b"")
        pipe.send_bytes(pickle.dumps(found))

    processes = Processes(multiprocessing.get_context("fork"), process, [(number,) for number in range(3)])
    for number, found in enumerate(processes.outcomes()):
        assert found == [list(range(len(members))) for members in groups if number in members]


def test_a_launcher_starts_ranks_again(monkeypatch):
    """Its store still has the place of the rank 0 that has ended. In the end it has no secret."""
    store = Store()
    store.set("ringreduce-meeting", b"a secret|127.0.0.1:1")
    monkeypatch.setattr(bootstrap, "place_to_meet", lambda *_: store)

    def meet(rank):
        if rank == 0:
            time.sleep(0.1)  # so that the other one has looked at the old place
        with bootstrap.meeting_of(Launched("torchrun", rank, 2, "job"), 20) as exchange:
            return exchange(b"%d" % rank)

    assert in_threads(meet) == [[b"0", b"1"]] * 2
    assert store == {"ringreduce-meeting": b""}


@pytest.mark.parametrize("transport", ["shm", "tcp", "auto"])
def test_nothing_stays_in_a_store(transport):
    """Who reads it later could pass for a rank with what ranks that meet over TCP tell each other."""
    store, seen = Store(), []
    store_set = store.set

    def keep(key, value):
        seen.append(value)
        store_set(key, value)

    store.set = keep
    made = in_threads(lambda rank: ringreduce.init(rank, 2, store, timeout=20, transport=transport))
    assert max(map(len, seen)) > 1
    assert max(map(len, store.values())) <= 1
    in_threads(lambda rank: use(made[rank]))


def test_a_rank_that_does_not_come():
    with pytest.raises(ringreduce.TimeoutError, match="rank"):
        ringreduce.init(0, 2, secrets.token_hex(8), timeout=0.2)
    with pytest.raises(ringreduce.TimeoutError, match="rank 0"):
        ringreduce.init(1, 2, secrets.token_hex(8), timeout=0.2)


@pytest.mark.parametrize("rank, text", [(0, "ranks [1]"), (1, "rank 0")])
def test_a_rank_that_does_not_come_to_a_store_is_named(rank, text):
    c10d = pytest.importorskip("torch.distributed")
    with pytest.raises(ringreduce.TimeoutError, match=re.escape(f"waiting for {text} to start")) as raised:
        ringreduce.init(rank, 2, c10d.HashStore(), timeout=0.2)
    assert raised.value.rank == 1 - rank
