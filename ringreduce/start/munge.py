"""MUNGE credentials, which identify processes of one user across a cluster. See munge(7).

Slurm's own daemons use MUNGE, so nearly every cluster with Slurm has it.
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["MungeError", "decode", "encode", "is_there"]

_UID_RESTRICTION = 9  # munge_opt: the user who may decode a credential
_STILL_VALID = (0, 15, 16, 17)  # also if it has expired, is from the future, or was decoded before


class MungeError(OSError):
    """munged does not answer, or this process may not decode the credential."""


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libmunge.so.2")
    except OSError:
        return None
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_strerror.restype = ctypes.c_char_p
    return library


def is_there() -> bool:
    """Returns whether the library is installed and its daemon answers."""
    try:
        encode(b"")
    except MungeError:
        return False
    return True


def encode(payload: bytes) -> bytes:
    """Returns a credential that only processes of this user can decode, on hosts that share the cluster's key.

    Raises:
        MungeError: this host has no MUNGE.
    """
    library = _loaded()
    context = ctypes.c_void_p(library.munge_ctx_create())
    try:
        library.munge_ctx_set(context, _UID_RESTRICTION, ctypes.c_uint32(os.geteuid()))
        credential = ctypes.c_char_p()
        _check(library, library.munge_encode(ctypes.byref(credential), context, payload, len(payload)))
        text = credential.value or b""
        ctypes.CDLL(None).free(credential)
        return text
    finally:
        library.munge_ctx_destroy(context)


def decode(credential: bytes) -> bytes:
    """Returns the payload that a process of this user has encoded.

    Credentials may be decoded more than once, because several ranks of a host get the same one.

    Raises:
        MungeError: the credential is of another user or another cluster, or this host has no MUNGE.
    """
    library = _loaded()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    code = library.munge_decode(
        credential, None, ctypes.byref(payload), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
    )
    found = ctypes.string_at(payload, length.value) if payload else b""
    if payload:
        ctypes.CDLL(None).free(payload)
    if code not in _STILL_VALID:
        _check(library, code)
    if uid.value != os.geteuid():
        raise MungeError(f"the credential is of user {uid.value}, but this process is of user {os.geteuid()}")
    return found


def _loaded() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise MungeError("libmunge.so.2 cannot be loaded")
    return library


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise MungeError(library.munge_strerror(code).decode())
