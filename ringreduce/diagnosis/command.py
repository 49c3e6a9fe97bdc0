"""The command ``ringreduce diagnose``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from ringreduce.diagnosis.ranks import Rank, add_stacks, found_here
from ringreduce.diagnosis.verdict import in_full, jobs, verdicts
from ringreduce.hosts import hosts_named, ssh_words

__all__ = ["DESCRIPTION", "add_options", "run"]

DESCRIPTION = """\
Says who holds up a job that hangs, from outside: which rank is missing in which call, what it does instead, and who
waits for it.

  ringreduce diagnose                          the jobs of this user on this host
  ringreduce diagnose --pid 4711               the job of one process
  ringreduce diagnose --hosts node0,node1      those of several hosts, by ssh
  ringreduce diagnose --save host0.json        on every host of a job, and then
  ringreduce diagnose host0.json host1.json    all of them together, without ssh

It reads memory that ranks share anyway, so it also sees ranks that are stopped or never return to Python. Python stacks
come from py-spy, if it is installed and may look at the processes, or from ranks that were started with
RINGREDUCE_REPORT=answer. The exit status is 0 if no rank has waited for long, and 3 if one has.
"""
HELD_UP = 3  # the exit status
PATIENCE = 60.0  # seconds for all hosts to answer


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "saved", nargs="*", type=Path, metavar="FILE", help="what --save has written on the hosts of a job"
    )
    parser.add_argument("--hosts", help="hosts that ssh can reach, as for ringreduce run: a,b (this host)")
    parser.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help="the ssh command, with its options (ssh)"
    )
    parser.add_argument("--pid", type=int, help="only the job that this process belongs to")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write what was found to a file instead, or to - (stdout)"
    )
    parser.add_argument(
        "--all", action="store_true", help="also show the last calls and the stack of every rank"
    )
    parser.add_argument(
        "--longer-than",
        type=float,
        default=1.0,
        metavar="S",
        help="count waits of at least so many seconds (1)",
    )
    parser.add_argument(
        "--no-stacks", action="store_true", help="do not look for Python stacks, which is slower"
    )


def run(options: Namespace) -> int:
    if options.longer_than < 0:
        raise ValueError(f"--longer-than must not be negative, not {options.longer_than}")
    if options.saved and options.hosts is not None:
        raise ValueError("--hosts: give hosts or files, not both")
    if options.hosts is not None:
        everybody = _on_hosts(options)
    else:
        everybody = (
            [rank for path in options.saved for rank in _read(path)] if options.saved else found_here()
        )
    found = jobs(everybody)
    if options.pid is not None:
        found = [job for job in found if any(rank.pid == options.pid for rank in job)]
        if not found:
            raise ValueError(f"--pid: process {options.pid} is in no group that this user may look at")
    if not options.saved and options.hosts is None and not options.no_stacks:
        for job in found:
            add_stacks(job)
    if options.save is not None:
        _write(options.save, [rank for job in found for rank in job])
        return 0
    if not found:
        print(f"no process of this user on {options.hosts or 'this host'} is in a group")
        return 0
    texts = [_of_job(job, verdicts(job, options.longer_than), options) for job in found]
    print("\n\n".join(text for text, _ in texts))
    return HELD_UP if any(held_up for _, held_up in texts) else 0


def _on_hosts(options: Namespace) -> list[Rank]:
    """Returns what this command finds on several hosts. Those that cannot be asked may be why the job hangs."""
    words = [sys.executable, "-m", "ringreduce", "diagnose", "--save", "-"]
    words += ["--no-stacks"] if options.no_stacks else []
    line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
    hosts = dict.fromkeys(place.host for place in hosts_named(options.hosts, 1))
    if not shutil.which(ssh_words(options.ssh)[0]):
        raise ValueError(f"{options.ssh}: no such program")
    asked = {
        host: subprocess.Popen(
            [*ssh_words(options.ssh), host, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        for host in hosts
    }
    found, end = [], time.monotonic() + PATIENCE
    for host, asking in asked.items():
        try:
            said, _ = asking.communicate(timeout=max(end - time.monotonic(), 0.1))
            if asking.returncode:
                raise ValueError(f"{options.ssh} failed with status {asking.returncode}")
            found += [Rank.from_dict(one) for one in json.loads(said)]
        except (ValueError, TypeError, KeyError, subprocess.TimeoutExpired) as error:
            asking.kill()
            asking.wait()
            print(
                f"ringreduce: {host} does not answer, so nothing is known of its ranks: {error}",
                file=sys.stderr,
            )
    return found


def _read(path: Path) -> list[Rank]:
    try:
        return [Rank.from_dict(one) for one in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a file that ringreduce diagnose --save wrote: {error}") from error


def _write(path: Path, ranks: Sequence[Rank]) -> None:
    text = json.dumps([rank.as_dict() for rank in ranks])
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise ValueError(f"--save: {error}") from error
    print(f"{len(ranks)} processes: {path}")


def _of_job(job: Sequence[Rank], sentences: Sequence[str], options: Namespace) -> tuple[str, bool]:
    size = max(group.size for rank in job for group in rank.groups)
    lines = [f"a job of {size} ranks; {len(job)} of its processes are known: {job[0].command}"]
    lines += [f"  {sentence}" for sentence in sentences]
    if not sentences:
        lines.append(f"  no rank has waited for {options.longer_than:g} s or longer")
    if options.all:
        for rank in job:
            lines += ["", *in_full(rank)]
    return "\n".join(lines), bool(sentences)
