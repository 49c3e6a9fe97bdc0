"""A rank of a job whose communicators send through MPI: runs the parts that the command line names."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np

import ringreduce

sys.modules.setdefault("pytest", mock.MagicMock())  # the MPIs' environments have none

from ringreduce.start.launchers import launched  # noqa: E402
from tests.communicator.collectives.calls import COLLECTIVES, Call, algorithms, check, variants  # noqa: E402

WANTED = os.environ["RINGREDUCE_TRANSPORT"]
HOSTS = os.environ.get("HOSTS", "")  # a letter for each rank: ranks with the same one are on one host
SMALL, MIDDLE, LARGE = 5, 5000, 300_000


def becomes(wanted, ranks):
    """What ranks of the world travel by that want this."""
    if "+" not in wanted:
        return wanted
    hosts = {HOSTS[rank] for rank in ranks}
    if len(hosts) == 1:
        return "shm"
    return wanted if len(hosts) < len(ranks) else "mpi"


def collectives(comm):
    """Every collective, small and large; the all-reduces by every algorithm, around every change of protocol."""
    for name in COLLECTIVES:
        for count in (0, SMALL, MIDDLE, LARGE // comm.size):
            for call in variants(Call(name, count, root=comm.size - 1)):
                check(comm, call)
    for algorithm in algorithms("all_reduce"):
        for count in (1, 100, 8192, 8193, 70_001):
            check(comm, Call("all_reduce", count, algorithm))
    for dtype in ("float64", "int8"):
        check(comm, Call("all_reduce", MIDDLE, op="max", dtype=np.dtype(dtype)))
    check(comm, Call("all_gather", counts=tuple(range(1, comm.size + 1)), mode="out"))
    comm.barrier()


def rounds(comm):
    """The all-reduces of which MPI sends the whole buffer at once take one round, of which it sends half, two."""
    at_once = 3840 if "openmpi" in os.environ["MPICC"] else 8000  # bytes
    for nbytes, algorithm in [
        (at_once, "one_shot"),
        (at_once + 4, "two_shot"),
        (2 * at_once, "two_shot"),
        (2 * at_once + 4, "one_shot"),
    ]:
        comm.reset_statistics()
        comm.all_reduce(np.ones(nbytes // 4, "float32"))
        assert [call.algorithm for call in comm.statistics().calls] == [algorithm], nbytes


def messages(comm):
    """Between all pairs, of all sizes, both ways at once, many at a time; a sent buffer may be changed."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (0, 1, 4, 2000, 8192, 8193, 20_000, 65_536, 65_537, 400_000):
        x = np.arange(count, dtype="int32") + comm.rank
        work = comm.send(x, right, async_op=True)
        got = comm.recv(np.empty_like(x), left)
        assert np.array_equal(got, np.arange(count, dtype="int32") + left), count
        work.wait(30)
        x[:] = -1
    works, received = [], []
    for i in range(40):
        for peer in range(comm.size):
            length = [10, 3000, 60_000][i % 3]
            works.append(comm.send(np.full(length, 100 * comm.rank + i, "int32"), peer, tag=i, async_op=True))
            received.append((np.zeros(length, "int32"), 100 * peer + i))
            works.append(comm.recv(received[-1][0], peer, tag=i, async_op=True))
    for work in reversed(works):
        work.wait(30)
    assert all((got == want).all() for got, want in received)


def background(comm):
    """Asynchronous collectives, in order, with blocking ones between them."""
    arrays = [np.full(1 + 7000 * i, comm.rank + i, "float32") for i in range(12)]
    works = [comm.all_reduce(x, async_op=True) for x in arrays[:-1]]
    comm.all_reduce(arrays[-1])
    for work in works:
        work.wait(30)
    total = comm.size * (comm.size - 1) / 2
    assert all((x == total + i * comm.size).all() for i, x in enumerate(arrays))


def groups(comm):
    """Halves, which speak at once; then many communicators at once, and more than there are at once."""
    half = comm.split(comm.rank % 2, -comm.rank)
    members = range(comm.rank % 2, comm.size, 2)
    assert half.transport == becomes(comm.transport, members)
    x = half.all_reduce(np.full(MIDDLE, comm.rank, "int32"))
    assert (x == sum(members)).all()
    assert comm.split(None if comm.rank == 0 else 1, 0) is None or comm.rank > 0
    many = [comm.split(0) for _ in range(64)]
    works = [(i, c.all_reduce(np.full(100, i, "int32"), async_op=True)) for i, c in enumerate(many)]
    for i, work in works:
        assert (work.wait(60) == i * comm.size).all()
    for c in [half, *many]:
        c.close()
    for _ in range(5):
        with comm.split(0) as again:
            again.barrier()


def joined_again(comm):
    """The job can be joined as often as one likes."""
    for _ in range(3):
        with ringreduce.init(transport=WANTED, timeout=30) as again:
            assert (again.rank, again.size, again.transport) == (comm.rank, comm.size, comm.transport)
            again.all_reduce(np.ones(MIDDLE))


def meeting(comm):
    """Without mpi4py, ranks of several hosts, which these are made to believe that they are, meet by MPI."""
    os.environ |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MPI_LOCALNRANKS": "1"}
    with (
        mock.patch.dict(sys.modules, {"mpi4py": None}),
        ringreduce.init(transport="tcp", timeout=30) as other,
    ):
        assert (other.rank, other.transport) == (comm.rank, "tcp")
        assert (other.all_reduce(np.ones(3)) == comm.size).all()


def mismatch(comm):
    with comm.split(0) as group:
        x = np.ones(8, "float32") if group.rank else np.ones(9, "float32")
        try:
            group.all_reduce(x)
        except ringreduce.MismatchError as error:
            assert "[8]" in str(error) and "[9]" in str(error), error
        else:
            raise AssertionError("no error")


def lateness(comm):
    """Whoever does not come is named."""
    last = comm.size - 1
    with comm.split(0) as group:
        if group.rank == last:
            time.sleep(1.2)
            return
        try:
            group.all_reduce(np.ones(10), timeout=0.5)
        except (ringreduce.TimeoutError, ringreduce.PeerLost) as error:
            assert f"rank {last}" in str(error) or group.size > 2, error
        else:
            raise AssertionError("no error")


def giant(comm):
    """1 GiB."""
    x = np.zeros(1 << 30, "uint8")
    x[::4096] = comm.rank + 1
    comm.all_reduce(x)
    assert (x[::4096] == 3).all() and x[1] == 0


def beside_mpi4py(comm):
    """Communicators of mpi4py's as store, while the program uses MPI for itself."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for part in (world, world.Dup(), world.Split(world.rank % 2, -world.rank)):
        with ringreduce.init(store=part, transport=WANTED, timeout=30) as own:
            assert (own.rank, own.size) == (part.rank, part.size)
            assert own.transport == becomes(WANTED, part.allgather(world.rank))
            right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
            theirs = np.empty(MIDDLE, "int32")
            request = world.Irecv(theirs, left, tag=0)
            work = own.all_reduce(np.full(LARGE, own.rank, "float32"), async_op=True)
            world.Send(np.full(MIDDLE, world.rank, "int32"), right, tag=0)
            assert world.allreduce(1) == world.size
            assert (work.wait(30) == sum(range(own.size))).all()
            request.Wait()
            assert (theirs == left).all()
        if part is not world:
            part.Free()


def one_thread(comm):
    """Another thread's calls are refused, whomever they concern, and the first's work before and after that."""
    check(comm, Call("all_reduce", LARGE))
    x = np.full(SMALL, comm.rank)
    background = comm.all_reduce(x, async_op=True)
    refused(lambda: background.wait(30))
    peer = comm.rank - 1 if comm.rank else 1
    large = np.zeros(LARGE)
    refused(lambda: comm.recv(large, peer, async_op=True))
    refused(lambda: comm.send(large, peer, async_op=True))
    for call in (comm.barrier, lambda: comm.send(x, peer), lambda: comm.recv(x, peer)):
        thread = threading.Thread(target=refused, args=(call,))
        thread.start()
        thread.join()
    assert len(REFUSED) == 6, REFUSED
    if comm.rank > 0:
        assert (comm.recv(x, comm.rank - 1) == comm.rank - 1).all()
    if comm.rank + 1 < comm.size:
        comm.send(np.full(SMALL, comm.rank), comm.rank + 1)
    check(comm, Call("all_reduce", SMALL))


REFUSED = []


def refused(call):
    try:
        call()
    except ValueError as error:
        assert "MPI_THREAD_SERIALIZED" in str(error), error
        REFUSED.append(error)


def gpus(comm):
    """Arrays in GPU memory go through the CPU's collectives, in groups of their own and in threads of theirs."""
    from tests.gpu import programs_of_hosts as programs

    programs.library()
    for count in (1, 37 * comm.size, programs.LARGE):
        programs.reductions(comm, count, "float32", "sum")
        programs.movements(comm, count)
    for _ in range(20):  # calls on the CPU at the same time
        x = programs.GpuArray(np.full(programs.LARGE, comm.rank, "float32"))
        work = comm.all_reduce(x, async_op=True)
        assert (comm.all_reduce(np.ones(MIDDLE)) == comm.size).all()
        work.wait()
        assert (x.get(comm) == comm.size * (comm.size - 1) / 2).all()


def gpus_with_one_thread(comm):
    """Are refused on all ranks, because they take threads."""
    from tests.gpu import programs_of_hosts as programs

    programs.library()
    x = programs.GpuArray(np.ones(SMALL, "float32"))
    try:
        comm.all_reduce(x)
    except ringreduce.Error as error:
        assert "rank 0: MPI was initialised with MPI_THREAD_FUNNELED" in str(error), error
    else:
        raise AssertionError("served")
    check(comm, Call("all_reduce", SMALL))


def idle(comm):
    """Who waits long for another host leaves the core to others."""
    if comm.rank == comm.size - 1:
        time.sleep(3)
    used = time.process_time()
    comm.barrier()
    assert time.process_time() - used < 1.5


def death(comm):
    """A rank dies: the others learn of it and go on, or the launcher ends them. Nobody hangs, at the end neither."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # with which MPICH's launcher tells the others of it
    comm.all_reduce(np.ones(10))
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            comm.all_reduce(np.ones(10))
    except ringreduce.PeerLost as error:
        lost = str(error).partition(",")[0]  # without what it called last
    # Without it they end all the same.
    if "SHRINKS" in os.environ:
        with comm.shrink() as survivors:
            x = survivors.all_reduce(np.ones(MIDDLE, "int32"))
            assert (x == comm.size - 1).all()
            lost = f"{lost}; {survivors.size} go on over {survivors.transport}"
    if "FOLDER" in os.environ:
        written = Path(os.environ["FOLDER"], f"{comm.rank}.new")
        written.write_text(f"{os.getpid()} {lost}")
        written.rename(written.with_suffix(""))
    comm.close()
    sys.exit()  # the launcher may be gone by now, and with it what is printed


def main(names: list[str]) -> None:
    with_one_thread = any("one_thread" in name for name in names)
    if "beside_mpi4py" in names or with_one_thread:
        import mpi4py

        mpi4py.rc.thread_level = "funneled" if with_one_thread else "multiple"
        from mpi4py import MPI  # noqa: F401  it initialises MPI
    if HOSTS:
        os.environ["RINGREDUCE_HOST"] = HOSTS[launched(os.environ).rank]
    comm = ringreduce.init(timeout=30)
    assert comm.transport == os.environ["BECOMES"], comm.transport
    for name in names:
        start = time.monotonic()
        globals()[name](comm)
        if comm.rank == 0:
            print(f"{name} {time.monotonic() - start:.1f} s", flush=True)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
