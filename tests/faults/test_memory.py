"""Nothing is left behind, nothing leaks, and nobody else can look."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import Ranks, run

import ringreduce


def _shm() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _open_files() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(fd))
    return found


def _memory_in_use(comm, board, inherited):
    x = ringreduce.zeros(1 << 18)
    comm.all_reduce(x)
    assert not [name for name in _open_files() - inherited if name.startswith("/dev/shm")]
    board.note(comm.rank)
    while True:
        comm.all_reduce(x)


def _holders() -> list[str]:
    """The processes that hold memory of ours, by descriptor or mapping."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text()
        except OSError:
            continue
        if "memfd:ringreduce" in maps:
            found.append(process.name)
    return found


def test_nothing_remains_after_kill():
    before = _shm()
    ranks = Ranks(_memory_in_use, 3, _open_files())
    ranks.wait_for()
    assert _shm() <= before
    pids = {str(process.pid) for process in ranks.processes}
    assert pids <= set(_holders())
    for rank in range(3):
        ranks.kill(rank, signal.SIGKILL)
    assert ranks.outcomes() == [None] * 3
    assert _shm() <= before
    assert not pids & set(_holders())


WITHOUT_SHM = """
import sys, numpy as np, ringreduce
def main(comm):
    x, y = np.ones(1 << 20, "float32"), ringreduce.zeros(1 << 20)
    return float(comm.all_reduce(x)[0]), float(comm.all_reduce(y)[0])
if __name__ == "__main__":
    assert ringreduce.run(main, 4) == [(4.0, 0.0)] * 4
"""


@pytest.mark.parametrize("options", ["size=64k", "size=64k,ro"])
def test_without_room_in_dev_shm(options, tmp_path):
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting in a namespace of its own is not permitted here")
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_SHM)
    command = f'{mount} && exec "{sys.executable}" "{script}"'
    done = subprocess.run([unshare, "-m", "sh", "-c", command], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def _held() -> tuple[int, int, int]:
    """File descriptors, mappings and resident bytes of this process."""
    maps = Path("/proc/self/maps").read_text().count("memfd:ringreduce")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), maps, pages * 4096


def _come_and_go(comm, board, rounds):
    def once(i):
        with comm.split(0) as group:
            group.all_reduce(np.ones(1000, "float32"))
            if i % 10 == 0:
                group.all_reduce(np.ones(1000, "float32"), async_op=True).wait()

    for i in range(20):
        once(i)
    before = _held()
    for i in range(rounds):
        once(i)
    return before, _held()


def test_communicators_do_not_leak():
    for before, after in run(_come_and_go, 2, 200):
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 2
        assert after[2] <= before[2] + (8 << 20)


def _arrays(comm, board, rounds):
    def once():
        x = ringreduce.zeros(1 << 15)
        x += comm.rank + 1
        comm.all_reduce(x)
        assert x[0] == x[-1] == comm.size * (comm.size + 1) / 2

    for _ in range(20):
        once()
    before = _held()
    for _ in range(rounds):
        once()
    return before, _held()


def _shared_memory_touched(comm, board, bytes, calls):
    def touched():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssShmem:")))

    comm.barrier()
    before = touched()
    x = np.zeros(bytes // 4, dtype=np.float32)
    for _ in range(calls):
        comm.all_reduce(x)
        comm.barrier()
    return touched() - before


@pytest.mark.parametrize(
    ("bytes", "calls", "least", "most"),
    [(512, 5000, 0, 128), (16 << 10, 100, 1 << 10, 1200), (16 << 10, 2000, 2 << 10, 4400)],
    ids=["short", "few", "many"],
)
def test_the_shared_memory_that_messages_touch(bytes, calls, least, most):
    """In KiB, in both ranks' arenas of 2 MiB: a page that is touched for the first time takes longer than a short
    message, so a few longer ones use a quarter of an arena. Many use all of it, or half where copies fetch no lines."""
    touched = run(_shared_memory_touched, 2, bytes, calls)
    assert least <= min(touched) and max(touched) < most, touched


def test_arrays_do_not_leak():
    for before, after in run(_arrays, 2, 1000):
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 2
        assert after[2] <= before[2] + (8 << 20)


def _keep(comm, board):
    x = ringreduce.zeros(1 << 16)
    comm.all_reduce(x)
    board.note(comm.rank)
    while board.read(0, 1) == 0:
        time.sleep(0.01)


PEEK = """
import os, sys
os.setgid(65534); os.setgroups([]); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    sys.exit("opened " + path)
"""


def test_other_users_cannot_open_it():
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    ranks = Ranks(_keep, 2)
    ranks.wait_for()
    folder = Path(f"/proc/{ranks.processes[0].pid}/fd")
    paths = [str(fd) for fd in folder.iterdir() if "memfd:ringreduce" in os.readlink(fd)]
    modes = [os.stat(path).st_mode & 0o777 for path in paths]
    done = subprocess.run([sys.executable, "-c", PEEK, *paths], capture_output=True, text=True)
    ranks.board.note(0, 1)
    assert all(outcome.error is None for outcome in ranks.outcomes())
    assert len(paths) >= 2  # the segment, an array
    assert modes == [0o600] * len(paths)
    assert done.returncode == 0, done.stderr


def _fill_and_die(comm, board):
    x = ringreduce.zeros(1 << 20)
    comm.barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            comm.broadcast(x, 0)  # lent memory, of a process that may be gone
    except ringreduce.Error as error:
        return error


@pytest.mark.parametrize("attempt", range(3))
def test_memory_of_the_dead(attempt):
    found = Ranks(_fill_and_die, 3).outcomes()
    for outcome in found[1:]:
        assert isinstance(outcome.value, ringreduce.PeerLost) and outcome.value.rank == 0, outcome


def _meet_with_a_limit(comm, name, transport):
    """Rank 1 may have no files, nor shared memory, of more than 64 KiB."""
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which ends a process that goes beyond
        with pytest.raises(MemoryError, match=r"RLIMIT_FSIZE"):
            ringreduce.empty(1 << 20)
    try:
        with ringreduce.init(comm.rank, comm.size, name, transport=transport, timeout=20) as other:
            return other.transport, other.all_reduce(np.ones(3, np.float32)).tolist()
    except ringreduce.Error as error:
        return str(error)


def test_a_rank_without_shared_memory_uses_sockets():
    found = ringreduce.run(_meet_with_a_limit, 3, secrets.token_hex(8), "auto", timeout=100)
    assert found == [("tcp", [3, 3, 3])] * 3


def test_a_rank_without_shared_memory_is_named():
    for text in ringreduce.run(_meet_with_a_limit, 3, secrets.token_hex(8), "shm", timeout=100):
        assert "cannot connect the ranks through shared memory: rank 1: cannot allocate" in text
        assert "RLIMIT_FSIZE" in text
