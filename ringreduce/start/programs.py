"""Starts a program as the ranks of a job, on one or several hosts, and ends all of them together.

Each host has an agent: ``ringreduce run`` itself on this host, and a process started by ssh on the others. An agent
starts the ranks of its host, passes on their output, and reports the first failure. It ends them when its standard
input closes, so that nothing is left behind if ssh or its parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from ringreduce.start.orphans import end_with_parent

__all__ = ["Job", "Place", "agent", "hosts_named", "start"]

PORTS = range(20_000, 32_000)  # below the ports that systems use for outgoing connections
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
GRACE = 5.0  # seconds for ranks to end by themselves after a failure, Ctrl-C or SIGTERM
LOOK_EVERY = 0.05
INTERRUPTED, ENDED = 130, 143  # a shell's status after SIGINT and SIGTERM
SSH_FAILED = 255
NEWCOMER = "RINGREDUCE_NEWCOMER"


@dataclass(frozen=True)
class Place:
    """A host ("" is this one) and its number of ranks."""

    host: str
    ranks: int


@dataclass(frozen=True)
class Job:
    """The work of an agent."""

    command: list[str]
    world: int
    first_rank: int
    ranks: int
    prefix: bool
    bind: bool
    restarts: int = 0
    environment: dict[str, str] = field(default_factory=dict)


def hosts_named(text: str, ranks: int | None) -> list[Place]:
    """Parses "a,b", with ranks on each host, or "a:2,b:4".

    Raises:
        ValueError: a name or a number is missing.
    """
    places = []
    for item in text.split(","):
        host, colon, count = item.strip().rpartition(":") if ":" in item else (item.strip(), "", "")
        if not host or (colon and not (count.isdecimal() and int(count))):
            raise ValueError(f"--hosts: {item!r} is not a host; write a,b or a:2,b:4")
        if not colon and ranks is None:
            raise ValueError(
                f"--hosts: give the number of ranks on {host}, as {host}:2, or -n for every host"
            )
        places.append(Place(host, int(count) if colon else int(ranks or 0)))
    return places


def start(
    command: Sequence[str],
    places: Sequence[Place],
    *,
    prefix: bool = False,
    bind: bool = True,
    restarts: int = 0,
    ssh: str = "ssh",
    variables: Mapping[str, str] | None = None,
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

    Returns:
        The exit status of the first rank that failed, or 0. It is 128 plus the signal if a signal killed the rank.

    Raises:
        ValueError: the program, or ssh, does not exist.
    """
    here = all(not place.host for place in places)
    needed = command[0] if here else shlex.split(ssh)[0]
    if not shutil.which(needed):
        raise ValueError(f"{needed}: no such program")
    world = sum(place.ranks for place in places)
    shared = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}
    shared |= _meeting(places, restarts > 0) | dict(variables or {})
    jobs, first = [], 0
    for place in places:
        jobs.append(Job(list(command), world, first, place.ranks, prefix, bind, restarts, shared))
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


def _meeting(places: Sequence[Place], elastic: bool) -> dict[str, str]:
    """Returns the variables for the meeting places of ringreduce and torch. An elastic job may lose its first host."""
    here = all(not place.host for place in places)
    address = "127.0.0.1" if here else places[0].host.rpartition("@")[2]
    if not here:
        ports = secrets.SystemRandom().sample(PORTS, 2)
    else:
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind((address, 0))
            ports = [one.getsockname()[1], other.getsockname()[1]]
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(ports[0])}
    if not here:
        hosts = [place.host.rpartition("@")[2] for place in places] if elastic else [address]
        found["RINGREDUCE_RENDEZVOUS"] = f"{','.join(dict.fromkeys(hosts))}:{ports[1]}"
        found["RINGREDUCE_SECRET"] = os.environ.get("RINGREDUCE_SECRET") or secrets.token_hex(32)
    return found


def _over(ssh: str, places: Sequence[Place], jobs: Sequence[Job]) -> int:
    """Runs agents on other hosts. Sends them the job on standard input, because everyone can see a command line."""
    here = os.getcwd()
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for place, job in zip(places, jobs, strict=True):
            words = (
                f"cd {shlex.quote(here)} && exec {shlex.quote(sys.executable)} -m ringreduce.start.programs"
            )
            one = subprocess.Popen(
                [*shlex.split(ssh), place.host, words], stdin=subprocess.PIPE, start_new_session=True
            )
            agents.append(one)
            assert one.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its exit status says why
                one.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
                one.stdin.flush()
        # The others of an elastic job go on without a host that is lost.
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
            how = "failed" if status > 0 else _ending(status)
            print(f"ringreduce: {ssh} {place.host} {how}", file=sys.stderr)
    return _status(failed[0]) if failed else 0


def _status(code: int) -> int:
    """Returns the exit status that a shell reports."""
    return 128 - code if code < 0 else code


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def agent(job: Job, until: IO[bytes] | None) -> int:
    """Starts a host's ranks and waits for them. Ends them if a byte, or the end of file, is read from `until`."""
    ranks = _Ranks(job)
    try:
        ranks.start()
        with selectors.DefaultSelector() as selector:
            if until is not None:
                selector.register(until, selectors.EVENT_READ)
            for rank, output in ranks.outputs():
                selector.register(output, selectors.EVENT_READ, rank)
            status = ranks.watch(selector, until)
    except KeyboardInterrupt as stop:
        status = (*stop.args, INTERRUPTED)[0]
    return ranks.end(status)


class _Ranks:
    """The processes of a host's ranks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._parts: dict[int, bytes] = {}  # incomplete lines
        self._restarts = job.restarts  # that are left
        self._outside: dict[int, int] = {}  # newcomers, and where each says that its group has let it in
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts them all. An interrupt waits until the last is known, so that `end` misses none."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for local in range(self._job.ranks):
                self.processes.append(self._launch(local, before))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _launch(
        self, local: int, mask: Iterable[int], newcomer: int | None = None
    ) -> subprocess.Popen[bytes]:
        job = self._job
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // job.ranks if job.bind else 0
        own = cores[local * share : (local + 1) * share]
        pipe = subprocess.PIPE if job.prefix else None
        parent = os.getpid()
        environment = {
            **os.environ, **job.environment,
            "RANK": str(job.first_rank + local), "WORLD_SIZE": str(job.world),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(job.ranks),
        }  # fmt: skip
        environment.setdefault("OMP_NUM_THREADS", str(max(share, 1)))
        environment.pop(NEWCOMER, None)
        if newcomer is not None:
            environment[NEWCOMER] = str(newcomer)

        def prepare() -> None:
            end_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if own:
                os.sched_setaffinity(0, own)

        return subprocess.Popen(
            job.command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe,
            stderr=subprocess.STDOUT if pipe else None, start_new_session=True, preexec_fn=prepare,
            pass_fds=() if newcomer is None else (newcomer,),
        )  # fmt: skip

    def _restart(self, local: int, selector: selectors.BaseSelector) -> None:
        """Starts a rank again, as a newcomer, and ends what its process has left behind."""
        self._restarts -= 1
        self._forget(local)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.processes[local].pid, signal.SIGKILL)
            self._outside[local], told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self.processes[local] = again = self._launch(local, before, told)
            os.close(told)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if again.stdout is not None:
            selector.register(again.stdout, selectors.EVENT_READ, local)

    def _forget(self, local: int) -> None:
        if local in self._outside:
            os.close(self._outside.pop(local))

    def _waits_outside(self, local: int) -> bool:
        """Returns whether a newcomer's group has not let it in yet."""
        if local not in self._outside:
            return False
        try:
            os.read(self._outside[local], 1)  # or its end: the program cannot say it any more
        except BlockingIOError:
            return True
        self._forget(local)
        return False

    def outputs(self) -> list[tuple[int, IO[bytes]]]:
        return [(rank, process.stdout) for rank, process in enumerate(self.processes) if process.stdout]

    def watch(self, selector: selectors.BaseSelector, until: IO[bytes] | None) -> int:
        """Waits until all ranks have ended, one has failed, or `until` is readable. Returns the exit status."""
        while True:
            for key, _ in selector.select(LOOK_EVERY) if selector.get_map() else ():
                output: Any = key.fileobj
                read = os.read(output.fileno(), 1 << 16)
                if not read:
                    selector.unregister(output)
                if output is until:
                    return ENDED if read else INTERRUPTED
                if key.data is not None:
                    self._print(key.data, read)
            if not selector.get_map():
                time.sleep(LOOK_EVERY)
            codes = [process.poll() for process in self.processes]
            for local, code in enumerate(codes):
                if code:
                    self._say_how_it_ended(local, code)
                    if not self._restarts:
                        return _status(code)
                    self._restart(local, selector)
                    codes[local] = None
            # Nobody can let newcomers in when all others have ended.
            left = [local for local, code in enumerate(codes) if code is None]
            if left and len(left) < len(codes) and all(self._waits_outside(local) for local in left):
                return 0
            if None not in codes and not any(key.data is not None for key in selector.get_map().values()):
                return 0

    def _print(self, local: int, read: bytes) -> None:
        *lines, rest = (self._parts.pop(local, b"") + read).split(b"\n")
        if rest and not read:
            lines, rest = [*lines, rest], b""
        self._parts[local] = rest
        name = f"[{self._job.first_rank + local}] ".encode()
        sys.stdout.buffer.write(b"".join(name + line + b"\n" for line in lines))
        sys.stdout.buffer.flush()

    def _say_how_it_ended(self, local: int, code: int) -> None:
        more = "; ending the other ranks" if self._job.world > 1 else ""
        if self._restarts:
            more = f"; starting it again as a newcomer ({self._restarts} restarts left)"
        where = f" on {socket.gethostname()}" if self._job.world > self._job.ranks else ""
        print(
            f"ringreduce: rank {self._job.first_rank + local}{where} {_ending(code)}{more}",
            file=sys.stderr,
            flush=True,
        )

    def end(self, status: int) -> int:
        """Ends the remaining ranks and all their child processes."""
        first = signal.SIGINT if status == INTERRUPTED else signal.SIGTERM
        until = time.monotonic() + (GRACE if status else 0)
        self._signal(first)
        for local in list(self._outside):
            self._forget(local)
        while time.monotonic() < until and any(process.poll() is None for process in self.processes):
            time.sleep(LOOK_EVERY)
        self._signal(signal.SIGKILL)
        for local, process in enumerate(self.processes):
            process.wait()
            if process.stdout is not None:
                os.set_blocking(process.stdout.fileno(), False)
                self._print(local, process.stdout.read() or b"")
                self._print(local, b"")
        return status

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _main() -> int:
    """Runs the agent of another host. Its job is the first line of standard input."""
    job = Job(**json.loads(sys.stdin.buffer.readline()))
    return agent(job, sys.stdin.buffer)


if __name__ == "__main__":
    raise SystemExit(_main())
