"""Programs in forked processes, which need not import again what takes seconds, such as torch."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ringreduce.start.orphans import end_with_parent

__all__ = ["Done", "forked", "launched_ranks"]


class Done(NamedTuple):
    """What has become of a program."""

    returncode: int
    stdout: str
    stderr: str


def launched_ranks(count: int) -> list[dict[str, str]]:
    """Returns the environment variables that torchrun and ``ringreduce run`` give their ranks."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [{**job, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def forked(
    main: Callable[[], object], arguments: list[str], environments: list[dict[str, str]] | None = None
) -> list[Done]:
    """Runs a program's main function in processes of its own, at the same time.

    Args:
        main: returns the exit status, or None for 0.
        arguments: sys.argv, from the name of the program on.
        environments: further environment variables of each process; by default there is one process.
    """
    parent, found = os.getpid(), []
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(number)) for number in range(len(environments or [{}]))]
        pids = []
        for place, environment in zip(places, environments or [{}], strict=True):
            if (pid := os.fork()) == 0:
                end_with_parent(parent)
                for descriptor in (1, 2):
                    output = os.open(f"{place}-{descriptor}", os.O_WRONLY | os.O_CREAT)
                    os.dup2(output, descriptor)
                _end_with(main, arguments, environment)
            pids.append(pid)
        for place, pid in zip(places, pids, strict=True):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            found.append(Done(code, *(Path(f"{place}-{descriptor}").read_text() for descriptor in (1, 2))))
    return found


def _end_with(main: Callable[[], object], arguments: list[str], environment: Mapping[str, str]) -> None:
    code: object = 1
    try:
        # What pytest has put there belongs to the parent.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = arguments
        os.environ.update(environment)
        code = main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
