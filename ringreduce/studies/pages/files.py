"""Writes files, and creates their folders."""

from __future__ import annotations

from pathlib import Path

__all__ = ["save"]


def save(path: Path | str, text: str) -> None:
    """Writes a text to a file, and creates its folder if necessary.

    Raises:
        ValueError: The file cannot be written. The message is one line that names it.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{target}: {error.strerror}") from error
