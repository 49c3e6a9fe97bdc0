"""Where the page's commands run: this host, or two hosts with processes, /dev/shm and a network of their own."""

from __future__ import annotations

import os
import select
import shlex
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.network.hosts import Host, Hosts

ROOT = Path(__file__).resolve().parents[3]
STAND_INS = Path(__file__).with_name("stand_ins")
LIMIT = 100.0  # seconds for a block
# Processes and memory of a host's own.
OWN = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc"]


def environment(*first: Path, **variables: str) -> dict[str, str]:
    """`first`: folders that come first on the PATH."""
    ours = ("RINGREDUCE_", "SLURM_", "OMP_", "RANK", "WORLD_SIZE", "MASTER_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    path = os.pathsep.join(map(str, [*first, STAND_INS, Path(sys.executable).parent, kept["PATH"]]))
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "RINGREDUCE_TUNING": "off", **variables}


def finish(process: subprocess.Popen[str], end: float) -> str:
    """What it prints until it has ended, as it must, and well."""
    try:
        said, errors = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors = process.communicate()
        raise AssertionError(f"{shlex.join(map(str, process.args))} hangs:\n{said}\n{errors}") from None
    assert process.returncode == 0, f"{said}\n{errors}"
    return str(said)


def start(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env=dict(variables), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def on_one_host(script: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """What a shell script prints."""
    shell = start(["sh", "-ec", script], folder, environment() if variables is None else variables)
    return finish(shell, time.monotonic() + LIMIT)


class TwoHosts:
    """host0 and host1; each reaches the other by name, by ssh, and over eth0."""

    def __init__(self, hosts: Hosts, shells: Path) -> None:
        self._into = {host.name: self._own(host) for host in hosts}
        self.shells = shells

    @staticmethod
    def _own(host: Host) -> list[str]:
        """Makes what a host has of its own; the command that enters it."""
        first = "mount -t tmpfs none /dev/shm && echo made && exec sleep infinity"
        keeper = host.popen([*OWN, "sh", "-c", first], stdout=subprocess.PIPE, text=True)
        assert keeper.stdout.readline() == "made\n"
        children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
        return ["nsenter", "--target", children.split()[0], "--net", "--mount", "--pid", "--uts", "--ipc"]

    def command(self, host: str, script: str, folder: str | Path) -> list[str]:
        return [*self._into[host], "sh", "-ec", f"cd {shlex.quote(str(folder))}\n{script}"]

    def run(
        self, scripts: Mapping[str, str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> str:
        """What all of them print."""
        own = {**(environment() if variables is None else variables), "SHELLS": str(self.shells)}
        end = time.monotonic() + LIMIT
        started = [start(self.command(host, text, folder), folder, own) for host, text in scripts.items()]
        try:
            return "".join([finish(shell, end) for shell in started])
        finally:
            for shell in started:
                shell.kill()


class _Shells(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Runs what stand_ins/ssh is asked to run on another host, and ends it when the connection does."""

    daemon_threads = True
    hosts: TwoHosts


class _Shell(socketserver.BaseRequestHandler):
    server: _Shells

    def handle(self) -> None:
        words, files, _, _ = socket.recv_fds(self.request, 1 << 20, 3)
        host, command, *variables = words.decode().split("\0")
        process = subprocess.Popen(
            self.server.hosts.command(host, command, "/"),
            env=dict(line.split("=", 1) for line in variables),
            stdin=files[0], stdout=files[1], stderr=files[2],
        )  # fmt: skip
        for file in files:
            os.close(file)
        while process.poll() is None:
            if select.select([self.request], [], [], 0.02)[0]:
                process.kill()
        self.request.send(bytes([process.wait() & 255]))


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    with tempfile.TemporaryDirectory() as folder, Hosts(2, rate=None) as hosts:
        path = Path(folder) / "shells"
        with _Shells(str(path), _Shell) as shells:
            shells.hosts = TwoHosts(hosts, path)
            thread: Any = threading.Thread(target=shells.serve_forever, daemon=True)
            thread.start()
            try:
                yield shells.hosts
            finally:
                shells.shutdown()
