"""Makes the stacks of a hanging process readable: threads that stand at the same place are shown once."""

from __future__ import annotations

import re

_THREAD = re.compile(r"^SIGABRT\(\d+\), PID: \d+, Thread (\d+):\s*$", re.M)
_FRAME = re.compile(r"^\s*frame #\d+: (.+?)(?: \+ 0x[0-9a-f]+)? \(0x[0-9a-f]+ in (?:.*/)?([^/)]+)\)$", re.M)
_HIDDEN = ("<unknown function>", "c10::FatalSignalHandler")
_PYTHON = ("Current thread 0x", "Thread 0x")


def condense(output: str, most: int = 16000) -> str:
    """A process's output with what faulthandler and torch wrote about its threads at the end."""
    first = _THREAD.search(output)
    before, native = (output[: first.start()], output[first.start() :]) if first else (output, "")
    starts = [before.find(f"\n{mark}") for mark in _PYTHON]
    start = min((place for place in starts if place >= 0), default=len(before))
    python = before[start:].strip()
    parts = [before[:start].rstrip()[-2000:], f"--- Python's stacks\n{python}" if python else ""]
    if native:
        parts.append(f"--- native stacks\n{_native(native)}")
    return "\n".join(filter(None, parts))[:most]


def _native(text: str) -> str:
    pieces = _THREAD.split(text)[1:]
    places: dict[str, list[str]] = {}
    for thread, frames in zip(pieces[::2], pieces[1::2], strict=True):
        shown = [
            f"  {name}  [{where}]" for name, where in _FRAME.findall(frames) if not name.startswith(_HIDDEN)
        ]
        places.setdefault("\n".join(shown), []).append(thread)
    return "\n".join(f"thread {', '.join(threads)}\n{place}" for place, threads in places.items())
