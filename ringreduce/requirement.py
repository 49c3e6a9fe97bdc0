"""The errors for a framework that is missing or too old."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["unmet"]


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
