"""The key-value space of a job under Open MPI's mpirun (PRRTE), over PMIx.

The client is a separate process, which runs this file as a program until the rank ends. There are two reasons: MPI_Init
of Open MPI 5 fails in a process that uses PMIx, and the server miscounts ranks if one client leaves while another
joins. The client uses the same library that mpirun has loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

__all__ = ["is_there", "look_up", "publish"]

_SUCCESS, _GLOBAL, _BOOL, _STRING = 0, 3, 1, 3  # pmix_status_t, pmix_scope_t, pmix_data_type_t
_WELL = "="  # the first character of an answer without an error
_LONGEST = 1 << 16
_PATIENCE = 2.0  # seconds to wait for the server at the end


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (("string", ctypes.c_char_p), ("flag", ctypes.c_bool), ("room", ctypes.c_char * 24))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


def is_there() -> bool:
    """Returns whether a PMIx server started this process and its library can be found."""
    return "PMIX_NAMESPACE" in os.environ and _library() is not None


def publish(key: str, text: str, deadline: float) -> None:
    """Publishes a text under a key, and waits until all other ranks call look_up().

    Raises:
        TimeoutError: not all ranks came before the deadline, in seconds of time.monotonic().
        Error: the server reported an error.
    """
    _ask(key, text, deadline)


def look_up(key: str, deadline: float) -> str:
    """Returns the text that rank 0 publishes. Raises like publish()."""
    return _ask(key, "", deadline)


@functools.cache
def _library() -> str | None:
    """Returns the library's path, or its name if the loader finds it."""
    from ringreduce.start.orphans import ancestors

    for pid in ancestors():
        try:
            with open(f"/proc/{pid}/maps") as maps:
                found = re.search(r"/\S*/libpmix\.so\S*", maps.read())
        except OSError:  # a process of another user
            continue
        if found:
            return found[0]
    try:
        ctypes.CDLL("libpmix.so.2")
    except OSError:
        return None
    return "libpmix.so.2"


def _ask(key: str, text: str, deadline: float) -> str:
    from ringreduce.errors import Error, TimeoutError

    requests, answers = _client()
    os.write(requests, f"{key} {text}\n".encode())
    if not select.select([answers], [], [], max(deadline - time.monotonic(), 0))[0]:
        raise TimeoutError("timed out waiting for all ranks of mpirun to call init()")
    answer = os.read(answers, _LONGEST).decode()
    if not answer.startswith(_WELL):
        raise Error(f"mpirun's PMIx server does not serve this rank: {answer or 'its client has exited'}")
    return answer[len(_WELL) :]


@functools.cache
def _client() -> tuple[int, int]:
    """Starts the client. Returns the descriptors of its input and output."""
    # Plain descriptors, not objects: the client must outlive MPI_Finalize, which may run after Python's objects die.
    theirs, requests = os.pipe()
    answers, result = os.pipe()
    command = [sys.executable, "-IS", __file__, str(_library())]
    subprocess.Popen(command, stdin=theirs, stdout=result, stderr=subprocess.DEVNULL)
    os.close(theirs)
    os.close(result)
    atexit.register(_end, os.getpid(), requests, answers)
    return requests, answers


def _end(pid: int, requests: int, answers: int) -> None:
    """Finalizes the client, unless MPI does. mpirun takes a rank that ends before it for a crashed one."""
    from ringreduce.start.launchers.pmi import mpi_was_used

    if pid == os.getpid() and not mpi_was_used():
        with contextlib.suppress(OSError):
            os.write(requests, b"\n")
            select.select([answers], [], [], _PATIENCE)


def _main(library: str) -> None:
    """Reads lines of a key and perhaps a text. Publishes the text, and prints the text that rank 0 published."""
    for number in (signal.SIGINT, signal.SIGTERM):  # only the rank handles them
        signal.signal(number, signal.SIG_IGN)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    pmix, me = ctypes.CDLL(library), _Process()
    _check("PMIx_Init", pmix.PMIx_Init(ctypes.byref(me), None, ctypes.c_size_t(0)))
    while line := lines.get().strip():
        key, _, text = line.partition(b" ")
        os.write(1, _WELL.encode() + _shared(pmix, _Process(me.namespace, 0), key, text))
    _check("PMIx_Finalize", pmix.PMIx_Finalize(None, ctypes.c_size_t(0)))


def _read(lines: SimpleQueue[bytes]) -> None:
    while line := sys.stdin.buffer.readline():
        lines.put(line)
    lines.put(b"")
    time.sleep(_PATIENCE)  # the rank is gone, and PMIx may be waiting for other ranks
    os._exit(1)


def _shared(pmix: ctypes.CDLL, rank_0: _Process, key: bytes, text: bytes) -> bytes:
    if text:
        value = _Value(_STRING, _Data(string=text))
        _check("PMIx_Put", pmix.PMIx_Put(_GLOBAL, key, ctypes.byref(value)))
        _check("PMIx_Commit", pmix.PMIx_Commit())
    everything, found = _Info(b"pmix.collect", 0, _Value(_BOOL, _Data(flag=True))), ctypes.POINTER(_Value)()
    none, one = ctypes.c_size_t(0), ctypes.c_size_t(1)
    _check("PMIx_Fence", pmix.PMIx_Fence(None, none, ctypes.byref(everything), one))
    _check("PMIx_Get", pmix.PMIx_Get(ctypes.byref(rank_0), key, None, none, ctypes.byref(found)))
    return found.contents.data.string or b""


def _check(function: str, status: int) -> None:
    if status != _SUCCESS:
        os.write(1, f"{function} failed with status {status}".encode())
        raise SystemExit(1)


if __name__ == "__main__":
    _main(sys.argv[1])
