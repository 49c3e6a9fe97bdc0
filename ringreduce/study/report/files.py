"""Files that are written whole, in folders that may not be there yet."""

from __future__ import annotations

from pathlib import Path

__all__ = ["save"]


def save(path: Path | str, text: str) -> None:
    """Writes the text.

    Raises:
        ValueError: the file cannot be written; one line that names it.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{target}: {error.strerror}") from error
