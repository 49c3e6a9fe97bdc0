"""The key-value space that Open MPI's mpirun (PRRTE) gives a job, by PMIx.

The client is a process of its own, this file as a program, and stays until the rank ends: MPI_Init of Open MPI 5 fails
in a process where PMIx is in use, and the server miscounts ranks of which one client leaves while another one comes. It
uses the very library that mpirun has loaded.
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
_WELL = "="  # how an answer begins
_LONGEST = 1 << 16
_PATIENCE = 2.0  # seconds for the server to say farewell


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (("string", ctypes.c_char_p), ("flag", ctypes.c_bool), ("room", ctypes.c_char * 24))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


def is_there() -> bool:
    """Whether a server of PMIx has started this process, and its library is found."""
    return "PMIX_NAMESPACE" in os.environ and _library() is not None


def publish(key: str, text: str, deadline: float) -> None:
    """Tells all ranks; each of them must look it up. Waits for them.

    Raises:
        TimeoutError: not all came before the deadline, a time.monotonic().
        Error: the server refuses.
    """
    _ask(key, text, deadline)


def look_up(key: str, deadline: float) -> str:
    """What rank 0 has published. Raises as publish() does."""
    return _ask(key, "", deadline)


@functools.cache
def _library() -> str | None:
    """The file's path, or its name where the loader finds it."""
    from ringreduce.start.orphans import ancestors

    for pid in ancestors():
        try:
            with open(f"/proc/{pid}/maps") as maps:
                found = re.search(r"/\S*/libpmix\.so\S*", maps.read())
        except OSError:  # another user's
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
        raise TimeoutError("timed out waiting for all ranks that mpirun has started to come to init()")
    answer = os.read(answers, _LONGEST).decode()
    if not answer.startswith(_WELL):
        raise Error(f"mpirun's PMIx server does not serve this rank: {answer or 'its client has ended'}")
    return answer[len(_WELL) :]


@functools.cache
def _client() -> tuple[int, int]:
    """Starts it; returns the descriptors of its input and output."""
    # As plain numbers: MPI_Finalize comes after the objects' end, and before the client's.
    theirs, requests = os.pipe()
    answers, result = os.pipe()
    command = [sys.executable, "-IS", __file__, str(_library())]
    subprocess.Popen(command, stdin=theirs, stdout=result, stderr=subprocess.DEVNULL)
    os.close(theirs)
    os.close(result)
    atexit.register(_end, os.getpid(), requests, answers)
    return requests, answers


def _end(pid: int, requests: int, answers: int) -> None:
    """mpirun takes a rank whose client has not finalized for one that has crashed; where there is MPI, it does that."""
    from ringreduce.start.pmi import mpi_was_used

    if pid == os.getpid() and not mpi_was_used():
        with contextlib.suppress(OSError):
            os.write(requests, b"\n")
            select.select([answers], [], [], _PATIENCE)


def _main(library: str) -> None:
    """For each line, a key with a text, or without: publishes the text, and prints what rank 0 has published."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the rank's to answer
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
    time.sleep(_PATIENCE)  # the rank is gone, and others may be waited for
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
        os.write(1, f"{function} fails with status {status}".encode())
        raise SystemExit(1)


if __name__ == "__main__":
    _main(sys.argv[1])
