"""Facts about this build, for ``ringreduce --version``."""

from __future__ import annotations

from pathlib import Path

from ringreduce import __version__, _engine

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "_built.txt"
"""Lines that csrc/facts.cmake writes when the package is installed."""


def facts() -> dict[str, str]:
    """The sources and the targets of the build."""
    lines = INSTALLED.read_text().splitlines() if INSTALLED.exists() else []
    known = dict(line.split(": ", 1) for line in lines)
    has_cuda = (PACKAGE / "libringreduce_cuda.so").exists()
    torches = sorted(path.name.split("-")[1] for path in PACKAGE.glob("_torch-*.so"))
    return {
        "commit": known.get("commit", "unknown"),
        "compiler": known.get("compiler", "unknown"),
        "CUDA": known.get("CUDA", "unknown") if has_cuda else "built without",
        "torch backend": ", ".join(dict.fromkeys(torches)) or "built on first use",
        "protocol": _engine.build_name().split("protocol ")[1],
    }


def text() -> str:
    """What ``ringreduce --version`` prints: the version, and a line for each fact."""
    return "\n".join([f"ringreduce {__version__}", *(f"{key}: {fact}" for key, fact in facts().items())])
