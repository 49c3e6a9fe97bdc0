"""Bytes, times and tables as text, and the text that options give."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["byte_count", "human_bytes", "human_seconds", "human_us", "layout", "markdown", "names", "sizes"]


def human_bytes(nbytes: int) -> str:
    """Formats a number of bytes, such as "64 KiB", without rounding it."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}iB"
    return f"{nbytes} B"


def human_us(us: float | None) -> str:
    """Formats microseconds with about three digits, and None as "-"."""
    if us is None:
        return "-"
    digits = 3 if us < 0.1 else 2 if us < 10 else 1 if us < 100 else 0
    return f"{us:.{digits}f}"


def human_seconds(seconds: float) -> str:
    """Formats seconds with about three digits and a unit, such as "12.3 ms"."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:,.4g} {name}"
    return f"{seconds * 1e6:.3g} us" if seconds > 0 else "0"


def layout(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Returns the lines of a table whose columns are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [gap.join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown. The first row is its heading."""
    lines = [f"| {line} |" for line in layout(rows, " | ")]
    rule = "".join("|" if mark == "|" else "-" for mark in lines[0])
    return "\n".join([lines[0], rule.replace("-|", ":|"), *lines[1:]])


def byte_count(text: str) -> int:
    """Converts a size such as "4", "8K", "64M" or "1G" to bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, "")
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(f"{text!r} is not a number of bytes; write 4, 8K, 64M or 1G")
    return int(digits) << units.get(unit, 0)


def names(text: str) -> list[str]:
    """Splits names that are separated by commas."""
    return [name for name in text.split(",") if name]


def sizes(text: str) -> list[int]:
    """Converts sizes that are separated by commas to bytes."""
    return [byte_count(size) for size in names(text)]
