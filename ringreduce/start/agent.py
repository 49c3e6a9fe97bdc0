"""Starts a host's ranks, passes on their output, and reports the first failure: an agent of ``ringreduce run``.

``ringreduce run`` itself is the agent of this host. On others it is a process that ssh starts. It ends the ranks when
its standard input closes, so that nothing is left behind if ssh or its parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO, Any

from ringreduce import cores
from ringreduce.descriptors import above_standard, drop_output, with_standard_streams
from ringreduce.start.launchers.again import NEWCOMER
from ringreduce.start.orphans import end_with_parent

__all__ = ["GRACE", "INTERRUPTED", "LOOK_EVERY", "HostJob", "agent", "ending", "status_of"]

GRACE = 5.0  # seconds for ranks to end by themselves after a failure, Ctrl-C or SIGTERM
LOOK_EVERY = 0.05
INTERRUPTED, ENDED = 130, 143  # a shell's status after SIGINT and SIGTERM


@dataclass(frozen=True)
class HostJob:
    """The work of an agent."""

    command: list[str]
    world: int
    first_rank: int
    ranks: int
    prefix: bool
    bind: bool
    restarts: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    # Each host's number of ranks, for Horovod's variables.
    as_horovod: list[int] = field(default_factory=list)


def _of_horovod(job: HostJob, local: int) -> dict[str, str]:
    """Returns the variables that horovodrun sets for a rank."""
    if not job.as_horovod:
        return {}
    host = [*accumulate(job.as_horovod, initial=0)].index(job.first_rank)
    has_one = [ranks > local for ranks in job.as_horovod]
    numbers = {
        "RANK": job.first_rank + local, "SIZE": job.world, "LOCAL_RANK": local, "LOCAL_SIZE": job.ranks,
        "CROSS_RANK": sum(has_one[:host]), "CROSS_SIZE": sum(has_one),
    }  # fmt: skip
    return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()} | {
        "HOROVOD_HOSTNAME": socket.gethostname()
    }


def status_of(code: int) -> int:
    """Returns the exit status that a shell reports."""
    return 128 - code if code < 0 else code


def ending(code: int) -> str:
    """Returns how a process ended, such as "was killed by SIGKILL"."""
    if code >= 0:
        return f"exited with status {code}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


@above_standard()
def agent(job: HostJob, until: IO[bytes] | None) -> int:
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
    except BrokenPipeError:
        status = drop_output()
    return ranks.end(status)


class _Ranks:
    """The processes of a host's ranks."""

    def __init__(self, job: HostJob) -> None:
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
        host = cores.usable()
        shares = host.shares(job.ranks) if job.bind else []
        own = shares[local] if shares else []
        pipe = subprocess.PIPE if job.prefix else None
        parent = os.getpid()
        environment = {
            **os.environ, **job.environment,
            "RANK": str(job.first_rank + local), "WORLD_SIZE": str(job.world),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(job.ranks), **_of_horovod(job, local),
        }  # fmt: skip
        environment.setdefault("OMP_NUM_THREADS", str(host.threads(job.ranks) if job.bind else 1))
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
                        return status_of(code)
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
            f"ringreduce: rank {self._job.first_rank + local}{where} {ending(code)}{more}",
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
    with_standard_streams()
    job = HostJob(**json.loads(sys.stdin.buffer.readline()))
    return agent(job, sys.stdin.buffer)


if __name__ == "__main__":
    raise SystemExit(_main())
