"""Starts a program as the ranks of a job, on one or several hosts, and ends all of them together.

Each host has an agent (:mod:`ringreduce.start.agent`): ``ringreduce run`` itself on this host, and a process started
by ssh on the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ringreduce.hosts import FREE_PORTS, HostSlots, ssh_words
from ringreduce.start.agent import GRACE, INTERRUPTED, LOOK_EVERY, HostJob, agent, ending, status_of

__all__ = ["start"]

PASSED_ON = (
    "RINGREDUCE_",
    "HOROVOD_",
    "NCCL_",
    "TORCH_",
    "OMP_",
    "PYTHON",
    "LD_LIBRARY_PATH",
    "CUDA_",
    "PATH",
    "VIRTUAL_ENV",
)
SSH_FAILED = 255


def start(
    command: Sequence[str],
    places: Sequence[HostSlots],
    *,
    prefix: bool = False,
    bind: bool = True,
    restarts: int = 0,
    ssh: str = "ssh",
    variables: Mapping[str, str] | None = None,
    as_horovod: bool = False,
) -> int:
    """Starts ranks, in the order of the places, and waits for them.

    Args:
        prefix: whether each line that a rank prints begins with the rank's number.
        bind: whether each rank gets its own share of the cores, if the host has a core for each.
        restarts: how often a rank of each host that fails is started again, as a newcomer, before a failure ends the
            job.
        ssh: the command, with its options, that runs a shell command on another host. Environment variables with a
            prefix in PASSED_ON are passed to the host.
        variables: further environment variables of the ranks.
        as_horovod: whether the ranks have Horovod's variables, too.

    Returns:
        The exit status of the first rank that failed, or 0. It is 128 plus the signal if a signal killed the rank.

    Raises:
        ValueError: the program, or ssh, does not exist.
    """
    here = all(not place.host for place in places)
    needed = command[0] if here else ssh_words(ssh)[0]
    if not shutil.which(needed):
        raise ValueError(f"{needed}: no such program")
    world = sum(place.ranks for place in places)
    shared = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}
    shared |= _meeting(places, restarts > 0) | dict(variables or {})
    jobs, first, hosts = [], 0, [place.ranks for place in places] if as_horovod else []
    for place in places:
        jobs.append(HostJob(list(command), world, first, place.ranks, prefix, bind, restarts, shared, hosts))
        first += place.ranks
    with _terminated_like_interrupted():
        return agent(jobs[0], None) if here else _over(ssh, places, jobs)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Makes SIGTERM, with which schedulers and containers end a job, reach the ranks like Ctrl-C."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _meeting(places: Sequence[HostSlots], elastic: bool) -> dict[str, str]:
    """Returns the variables for the meeting places of ringreduce and torch. An elastic job may lose its first host."""
    here = all(not place.host for place in places)
    ports = secrets.SystemRandom().sample(FREE_PORTS, 2)
    address, ports[0] = _of_this_host(ports[0]) if here else (places[0].host.rpartition("@")[2], ports[0])
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(ports[0])}
    if not here:
        hosts = [place.host.rpartition("@")[2] for place in places] if elastic else [address]
        found["RINGREDUCE_RENDEZVOUS"] = f"{','.join(dict.fromkeys(hosts))}:{ports[1]}"
        found["RINGREDUCE_SECRET"] = os.environ.get("RINGREDUCE_SECRET") or secrets.token_hex(32)
    return found


def _of_this_host(port: int) -> tuple[str, int]:
    """Returns this host's address for itself, and a free port, or that one if there is no network at all."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as free:
            free.bind((address, 0))
            return address, int(free.getsockname()[1])
    return "127.0.0.1", port


def _over(ssh: str, places: Sequence[HostSlots], jobs: Sequence[HostJob]) -> int:
    """Runs agents on other hosts. Sends them the job on standard input, because everyone can see a command line."""
    here = os.getcwd()
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for place, job in zip(places, jobs, strict=True):
            words = f"cd {shlex.quote(here)} && exec {shlex.quote(sys.executable)} -m ringreduce.start.agent"
            one = subprocess.Popen(
                [*ssh_words(ssh), place.host, words], stdin=subprocess.PIPE, start_new_session=True
            )
            agents.append(one)
            assert one.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its exit status says why
                one.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
                one.stdin.flush()
        # The others of an elastic job continue without a lost host.
        harmless = (0, None, SSH_FAILED) if jobs[0].restarts else (0, None)
        while (statuses := [one.poll() for one in agents]).count(None):
            if any(status not in harmless for status in statuses):
                break
            time.sleep(LOOK_EVERY)
        lost_all = all(status == SSH_FAILED for status in statuses)
        failed = [status for status in statuses if status and (lost_all or status not in harmless)]
    except KeyboardInterrupt as stop:
        failed = [*stop.args, INTERRUPTED]
    for one in agents:
        if one.stdin is not None:  # closing it makes the agent end its ranks
            with contextlib.suppress(BrokenPipeError):
                one.stdin.write(b"" if failed == [INTERRUPTED] else b"\n")
                one.stdin.close()
    late = time.monotonic() + 2 * GRACE
    for place, one in zip(places, agents, strict=False):  # an interrupt may have come before the last
        try:
            status = one.wait(max(late - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            print(
                f"ringreduce: {place.host} does not answer; its ranks may still be running", file=sys.stderr
            )
            one.kill()
            status = one.wait()
        if status == SSH_FAILED or status < 0:
            how = "failed" if status > 0 else ending(status)
            print(f"ringreduce: {ssh} {place.host} {how}", file=sys.stderr)
    return status_of(failed[0]) if failed else 0
