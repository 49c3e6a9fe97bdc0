"""The key-value space of a job under Hydra, the mpirun of MPICH and Intel MPI, over PMI-1.

PMI-1 is text over a socket that each rank inherits. The MPI library uses the same socket, before or afterwards, so this
module neither changes nor closes it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import select
import socket
import struct
import time
from pathlib import Path

from ringreduce.errors import Error, TimeoutError
from ringreduce.start.orphans import ancestors

__all__ = ["is_there", "look_up", "mpi_was_used", "publish"]

_LONGEST = 1 << 16  # bytes of an answer


def is_there() -> bool:
    """Returns whether this process has the socket and Hydra is at its other end."""
    try:
        peer = _pid_at_other_end(_descriptor())
    except (KeyError, ValueError, OSError):
        return False
    return peer == 0 or peer in ancestors()  # 0: Hydra is outside of this container


def publish(key: str, text: str, deadline: float) -> None:
    """Publishes a text under a key, and waits until all other ranks call look_up().

    Raises:
        TimeoutError: not all ranks came before the deadline, in seconds of time.monotonic().
        Error: Hydra reported an error.
    """
    space = _begin(deadline)
    _ask(f"cmd=put kvsname={space} key={key} value={text}", deadline)
    _ask("cmd=barrier_in", deadline)


def look_up(key: str, deadline: float) -> str:
    """Returns the text that rank 0 publishes. Raises like publish()."""
    space = _begin(deadline)
    _ask("cmd=barrier_in", deadline)
    return _ask(f"cmd=get kvsname={space} key={key}", deadline)["value"]


def _descriptor() -> int:
    return int(os.environ["PMI_FD"])


def _pid_at_other_end(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family != socket.AF_UNIX:
            raise OSError("not one of Hydra's sockets")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _begin(deadline: float) -> str:
    """Registers this process, as MPI_Init may do again, and returns the name of the space."""
    _ask("cmd=init pmi_version=1 pmi_subversion=1", deadline)
    # If a process ends after init without finalize, Hydra takes this for a crash and kills the others.
    atexit.register(_finalize, os.getpid(), os.fstat(_descriptor()).st_ino)
    return _ask("cmd=get_my_kvsname", deadline)["kvsname"]


def _finalize(pid: int, inode: int) -> None:
    """Finalizes at the end of the process, unless MPI does or the descriptor now belongs to another file."""
    with contextlib.suppress(OSError, Error):
        if pid == os.getpid() and os.fstat(_descriptor()).st_ino == inode and not mpi_was_used():
            _ask("cmd=finalize", time.monotonic() + 1)


def mpi_was_used() -> bool:
    """Returns whether MPI_Init has been called in this process."""
    flag = ctypes.c_int(0)
    for path in set(re.findall(r"/\S*/libmpi[^/\s]*\.so\S*", Path("/proc/self/maps").read_text())):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
        if flag.value:
            return True
    return False


def _ask(request: str, deadline: float) -> dict[str, str]:
    descriptor = _descriptor()
    os.write(descriptor, request.encode() + b"\n")
    answer, ready = b"", select.poll()
    ready.register(descriptor, select.POLLIN)
    while not answer.endswith(b"\n"):
        if not ready.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError("timed out waiting for all ranks of mpirun to call init()")
        more = os.read(descriptor, _LONGEST)
        if not more:
            raise Error("mpirun closed its connection to this rank")
        answer += more
    found = dict(word.partition("=")[::2] for word in answer.decode().split())
    if found.get("rc", "0") != "0":
        raise Error(f"mpirun refused {request.split()[0]!r}: {answer.decode().strip()}")
    return found
