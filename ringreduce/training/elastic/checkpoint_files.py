"""Files that exist completely or not at all, and tell whether they are damaged."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

__all__ = ["PARTIAL", "SealError", "read_sealed", "sealed", "unsealed", "write_sealed"]

PARTIAL = ".partial"
DIGEST_BYTES = hashlib.sha256().digest_size
COMMENT_LENGTH_BYTES = 2  # the last field of a ZIP file is the length of the comment that follows it
ZIP_END = b"PK\5\6"  # the signature of the last record of a ZIP file
ZIP_END_BYTES = 22  # the size of this record without a comment


class SealError(ValueError):
    """A file is damaged, or is not one that :func:`write_sealed` wrote."""


def write_sealed(place: Path, state: Any) -> None:
    """Writes a file that torch.load can read.

    Because the machine may stop at any moment, the file is written under another name, synced to the disk, and then
    renamed. The folder, which holds the name, is made if there is none, and synced too.

    Raises:
        OSError: the file cannot be written. Nothing is left of it.
    """
    partial = place.with_name(place.name + PARTIAL)
    _make_folder(place.parent)
    try:
        with partial.open("wb") as file:
            file.write(sealed(state))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(place)
        _sync_folder(place.parent)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sealed(state: Any) -> memoryview:
    """Returns the ZIP file that torch.save writes, with a SHA-256 checksum of it as its comment."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(-COMMENT_LENGTH_BYTES, io.SEEK_END)
    file.write(DIGEST_BYTES.to_bytes(COMMENT_LENGTH_BYTES, "little"))
    file.write(hashlib.sha256(file.getbuffer()).digest())
    return file.getbuffer()


def unsealed(content: bytes) -> Any:
    """Returns what was saved. No code in the file runs: it holds tensors, numbers, strings and containers of these.

    Raises:
        Exception: the content is damaged. torch raises exceptions of several types.
    """
    older = content[-ZIP_END_BYTES:].startswith(ZIP_END)  # it has no comment, and so no checksum
    if not older and not content.endswith(hashlib.sha256(memoryview(content)[:-DIGEST_BYTES]).digest()):
        raise ValueError("the checksum does not match")
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def read_sealed(place: Path) -> Any:
    """Returns what a file holds.

    Raises:
        OSError: the file cannot be read.
        SealError: the file is damaged.
    """
    content = place.read_bytes()
    try:
        return unsealed(content)
    except Exception as error:  # arbitrary bytes may raise any exception
        raise SealError(f"{place} is damaged: {error}") from error
