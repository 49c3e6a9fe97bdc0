"""The errors for a framework that is missing or too old."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

__all__ = ["check_version", "unmet"]


def unmet(
    module: str, package: str, oldest: str, error: ImportError, install: str | None = None
) -> ImportError:
    """Returns the error to raise if the module cannot be imported: ``error``, unless it is about the package.

    Args:
        module: the module of ringreduce.
        package: the package that it needs, which is also the name of what it imports.
        oldest: the oldest version that it works with.
        error: the exception that importing the package raised.
        install: the argument of pip install, if it is not just the package.
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    try:
        found = f"this is {package} {version(package)}, where {error.name} cannot be imported"
    except PackageNotFoundError:
        found = "there is none"
    return ImportError(
        f"{module} needs {package} {oldest} or later, but {found}: pip install '{install or f'{package}>={oldest}'}'",
        name=error.name,
    )


def check_version(module: str, package: str, found: str, oldest: str, install: str | None = None) -> None:
    """Raises RuntimeError if the version that was found is older than the oldest that the module works with.

    Args:
        module, package, oldest: as for :func:`unmet`.
        install: what to tell pip to install, if not the package.
    """
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or [*map(int, numbers.groups())] < [*map(int, oldest.split("."))]:
        raise RuntimeError(
            f"{module} needs {package} {oldest} or later; this is {package} {found}: "
            f"pip install -U {install or package}"
        )
