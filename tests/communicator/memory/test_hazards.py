"""What could go wrong while an array moves to shared memory, and after it has."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.processes import python

from ...conftest import on_processes, slowly
from ...start.running.sandbox import refuse
from .blocks import K, M, is_shared, moved, use

SIZES = [256 * K, *slowly(M + 4096, 2 * M, 9 * M + 8)]


@pytest.mark.parametrize("size", SIZES)
def test_threads_that_read_it_see_its_values(size):
    """Through the processor, and through the system."""

    def rank_main(comm):
        null = os.open("/dev/null", os.O_WRONLY)
        state, faults, reads = {"array": None, "ends": False}, [], [0]

        def read():
            ear, mouth = os.pipe()
            while not state["ends"]:
                if (array := state["array"]) is None:
                    continue
                if int(array.sum(dtype=np.int64)) != int(array[0]) * array.size:
                    faults.append("sum")
                os.write(null, array)
                somewhere = reads[0] * 1024 % (array.size - 1024)
                os.write(mouth, array[somewhere : somewhere + 1024])
                if len(set(np.frombuffer(os.read(ear, 4096), np.int32))) > 1:
                    faults.append("pipe")
                reads[0] += 1

        threads = [threading.Thread(target=read) for _ in range(2)]
        [thread.start() for thread in threads]
        kept = []  # so that every array is new memory, and moves
        for turn in range(max(4, 40 * M // size)):
            array = np.full(size // 4, turn, np.int32)
            out = np.empty_like(array)
            state["array"] = array
            for _ in range(3):
                comm.all_reduce(array, out=out)
            assert is_shared(array) and (out == 2 * turn).all()
            kept.append(array)
        state["ends"] = True
        [thread.join() for thread in threads]
        assert reads[0] > 0
        return faults

    assert on_processes(2, rank_main, timeout=100) == [[], []]


def test_threads_may_write_its_neighbours():
    def rank_main(comm):
        arrays = [np.zeros(300 * K // 4, np.int32) for _ in range(40)]
        counts, ends = [0, 0], []

        def write(which):
            while not ends:
                for array in arrays[which::2][::2]:
                    array += 1
                counts[which] += 1

        threads = [threading.Thread(target=write, args=(which,)) for which in range(2)]
        [thread.start() for thread in threads]
        others = [array for which in range(2) for array in arrays[which::2][1::2]]
        for array in others:
            for _ in range(3):
                use(comm, array)
        ends.append(True)
        [thread.join() for thread in threads]
        assert all(is_shared(array) and not array.any() for array in others)
        for which, count in enumerate(counts):
            assert all((array == count).all() for array in arrays[which::2][::2])
        return min(counts) > 0

    assert on_processes(2, rank_main, timeout=100) == [True, True]


def in_child(function):
    """Whether it returns in a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_what_was_there_and_writes_its_own():
    def rank_main(comm):
        shared, private = moved(comm, 5 * M), np.arange(M, dtype=np.int32)
        freed = [moved(comm, size) for size in (M, M, 3 * M, 300 * K)]
        kept = [freed.pop(1), np.ones(M, np.uint8)]
        del freed

        def child():
            assert not is_shared(shared)
            first, second = shared.sum(dtype=np.int64), private.sum()
            shared.fill(-3)
            private.fill(-4)
            new = np.full(M, 9, np.int32)
            assert (new == 9).all() and not np.zeros(3 * M, np.uint8).any()
            assert first == np.arange(5 * M // 4).sum() and second == np.arange(M).sum()
            assert in_child(lambda: [new.fill(1), shared.fill(2)])
            assert (new == 9).all() and (shared == -3).all() and (private == -4).all()

        assert all(in_child(child) for _ in range(3))
        assert (shared == np.arange(5 * M // 4)).all() and (private == np.arange(M)).all()
        again = np.empty(M // 4, np.int32)
        again.fill(5)
        use(comm, shared)
        return is_shared(shared), bool((again == 5).all() and (kept[0] == np.arange(M // 4)).all())

    assert on_processes(2, rank_main) == [(True, True)] * 2


def test_a_child_does_not_see_what_its_parent_writes_later():
    def rank_main(comm):
        arrays = [moved(comm, 2 * M, value) for value in (1, 2)]
        asks, answers = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(asks[0], 1)  # the parent has changed and freed its own by now
                good = all(
                    (array == np.arange(value, value + M // 2)).all()
                    for value, array in zip((1, 2), arrays, strict=True)
                )
                os.write(answers[1], b"y" if good else b"n")
                code = 0
            finally:
                os._exit(code)
        arrays.pop().fill(-1)
        arrays[0].fill(-1)
        os.write(asks[1], b"x")
        said = os.read(answers[0], 1)
        os.waitpid(child, 0)
        return said

    assert on_processes(2, rank_main) == [b"y", b"y"]


def test_a_child_can_be_a_rank_of_its_own():
    def rank_main(comm):
        array = moved(comm, M)
        inner = on_processes(2, lambda inner: (use(inner, array), use(inner, array), is_shared(array)))
        return [last for *_, last in inner], bool((array == np.arange(M // 4)).all())

    assert on_processes(2, rank_main) == [([True, True], True)] * 2


def test_private_arrays_cost_a_fork_nothing():
    """The child has the pages of its parent until one of them writes."""

    def rank_main(comm):
        kept = np.ones(100 * M, np.uint8), moved(comm, M)

        def child():
            with open("/proc/self/smaps_rollup") as text:
                lines = dict(line.split(":") for line in text if ":" in line and "-" not in line)
            private = int(lines["Private_Dirty"].split()[0]) * K
            assert private < 40 * M, lines
            assert len(kept) == 2

        return in_child(child)

    assert on_processes(2, rank_main) == [True, True]


def test_programs_that_it_starts_change_nothing():
    """posix_spawn and vfork share the memory until exec."""

    def rank_main(comm):
        array = moved(comm, M)
        assert subprocess.run(["true"]).returncode == 0
        os.waitpid(os.posix_spawn(shutil.which("true"), ["true"], {}), 0)
        assert subprocess.run(["true"], preexec_fn=lambda: array.fill(-1)).returncode == 0
        return is_shared(array), bool((array == np.arange(M // 4)).all())

    assert on_processes(2, rank_main) == [(True, True)] * 2


def stays(comm, prepare):
    """Whether an array stays private, with right results, after prepare(array)."""
    array = np.arange(M, dtype=np.int32)
    undo = prepare(array)
    for _ in range(5):
        use(comm, array)
    assert (array == np.arange(M)).all()
    found = not is_shared(array)
    if undo:
        undo()
        for _ in range(3):
            use(comm, array)
        assert is_shared(array) and (array == np.arange(M)).all()
    return found


def test_locked_pages_stay():
    libc = ctypes.CDLL(None)

    def lock(array):
        assert libc.mlock(ctypes.c_void_p(array.ctypes.data), 4096) == 0
        return lambda: libc.munlock(ctypes.c_void_p(array.ctypes.data), 4096)

    assert on_processes(2, stays, lock) == [True, True]


DRIVER = """
unsigned long registered;
int cuPointerGetAttribute(unsigned* answer, int attribute, unsigned long pointer) {
  *answer = 1;
  return attribute == 2 && pointer == registered ? 0 : 1;
}
"""


def test_pages_that_cuda_knows_stay(tmp_path):
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)

    def register(array):
        registered = ctypes.c_ulong.in_dll(ctypes.CDLL(str(library)), "registered")
        registered.value = array.ctypes.data
        return lambda: setattr(registered, "value", 0)

    assert on_processes(2, stays, register) == [True, True]


def limit(name, value):
    before = resource.getrlimit(name)
    resource.setrlimit(name, (value, before[1]))
    return lambda: resource.setrlimit(name, before)


def test_a_system_that_refuses_memory_files():
    assert on_processes(2, stays, lambda _: refuse(["memfd_create"], errno.EPERM)) == [True, True]


def test_a_limit_of_the_sizes_of_files():
    def limited(_):
        return limit(resource.RLIMIT_FSIZE, M)

    assert on_processes(2, stays, limited) == [True, True]


def test_a_limit_of_descriptors():
    def limited(_):
        undo, opened = limit(resource.RLIMIT_NOFILE, 200), []
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        return lambda: [undo(), *map(os.close, opened)]

    assert on_processes(2, stays, limited) == [True, True]


def test_a_limit_of_addresses():
    """An array is an ordinary one if there is no room for a block, and a block stays if there is none to move it."""

    def rank_main(comm):
        with open("/proc/self/statm") as text:
            undo = limit(resource.RLIMIT_AS, int(text.read().split()[0]) * 4096 + 48 * M)
        arrays = [np.ones(5 * M, np.uint8) for _ in range(3)]
        for array in arrays:
            for _ in range(3):
                use(comm, array)
        assert all((array == 1).all() for array in arrays)
        with pytest.raises(MemoryError):
            np.ones(1 << 40, np.uint8)
        undo()
        return len(arrays)

    assert on_processes(2, rank_main) == [3, 3]


class MemoryGroup:
    """A cgroup below this process's own, whose memory is limited."""

    def __init__(self):
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        path = {line.split(":")[1]: line.split(":", 2)[2] for line in groups}
        root, names = Path("/sys/fs/cgroup"), ("memory.current", "memory.max")
        if "memory" in path:  # version 1
            root, names = root / "memory", ("memory.usage_in_bytes", "memory.limit_in_bytes")
        own = root / path.get("memory", path.get("", "")).lstrip("/")
        self.folder = own / f"ringreduce-test-{os.getpid()}"
        self.used, self.limit = (self.folder / name for name in names)
        self.folder.mkdir()
        if not self.limit.exists():
            try:
                (own / "cgroup.subtree_control").write_text("+memory")
            except OSError:
                self.remove()
                raise

    def join(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def leave_free(self, bytes):
        self.limit.write_text(str(int(self.used.read_text()) + bytes))

    def limit_nothing(self):
        self.limit.write_text(str(1 << 62))

    def remove(self):
        self.folder.rmdir()


@pytest.fixture
def memory_group():
    try:
        group = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no cgroup can limit memory here: {error}")
    yield group
    group.remove()


def test_a_cgroup_with_little_memory_left(memory_group):
    """Ranks that have no room for a second copy of what moves are not killed."""

    def rank_main(comm):
        memory_group.join()
        array = np.arange(16 * M, dtype=np.int32)
        use(comm, array)
        if comm.rank == 0:
            memory_group.leave_free(16 * M)
        comm.barrier()
        for _ in range(2):
            use(comm, array)
        comm.barrier()
        memory_group.limit_nothing()
        return is_shared(array), bool((array == np.arange(16 * M)).all())

    assert on_processes(2, rank_main) == [(True, True)] * 2


def pattern(rank):
    return np.arange(M // 4, dtype=np.int32) * 7 + rank


DUMPED = """
import os, resource, signal, sys
import ringreduce
from tests.communicator.memory.blocks import M, moved
from tests.communicator.memory.test_hazards import pattern
def rank_main(comm):
    array = moved(comm, M)
    array[:] = pattern(comm.rank)
    comm.barrier()
    os.chdir(os.path.join(sys.argv[1], str(comm.rank)))
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()
ringreduce.run(rank_main, 2)
"""


def test_a_core_dump_has_it(tmp_path):
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("core dumps do not lie in the working directory here")
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    # Not a fork of this process: its core would have all that tests import.
    done = python("-c", DUMPED, tmp_path)
    assert "RankFailed" in done.stderr, done.stderr
    for rank in range(2):
        cores = list((tmp_path / str(rank)).iterdir())
        if not cores:
            pytest.skip("no core dumps here")
        with open(cores[0], "rb") as core, mmap.mmap(core.fileno(), 0, prot=mmap.PROT_READ) as content:
            assert content.find(pattern(rank).tobytes()) >= 0


ALLOCATORS = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2", "libmimalloc.so.2.0"]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_other_allocators(name):
    folders = [Path("/usr/lib"), *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/local/lib")]
    library = next((folder / name for folder in folders if (folder / name).exists()), None)
    if library is None:
        pytest.skip(f"{name} is not installed")
    program = """
import numpy as np, ringreduce
from tests.communicator.memory.test_hazards import in_child
from tests.communicator.memory.blocks import M, is_shared, moved
def rank_main(comm):
    array = moved(comm, 3 * M)
    assert in_child(lambda: array.fill(0))
    return is_shared(array) and bool((array == np.arange(3 * M // 4)).all())
print(ringreduce.run(rank_main, 2))
"""
    done = python("-c", program, timeout=200, LD_PRELOAD=str(library))
    assert done.stdout == "[True, True]\n", done.stderr
