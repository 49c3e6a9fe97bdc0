"""Starts servers and asks them for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from .cases import AS_GLOO, CONTROL, GLOO
from .outcome import SKIPPED, Outcome

ROOT = Path(__file__).parents[4]
# One thread in the process that forks, and one in each rank.
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class Suite:
    """torch's tests for one backend and world. Use as a context manager."""

    def __init__(self, backend: str, world: int, jobs: int = 1, start: str = "fork", debug: str = "") -> None:
        named = GLOO if backend == AS_GLOO else backend
        command = [sys.executable, "-m", f"{__package__}.server", "--backend", named, "--world", str(world)]
        command += ["--jobs", str(jobs), "--start", start]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}
        env.pop("TORCH_DISTRIBUTED_DEBUG", None)
        if backend in (GLOO, CONTROL):  # they need nothing of ours, built or not
            env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        if backend == AS_GLOO:
            env["RINGREDUCE_AS"] = "gloo"
        if debug:
            env["TORCH_DISTRIBUTED_DEBUG"] = debug
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True
        )
        first = self._process.stdout.readline() if self._process.stdout else ""
        if not first:
            raise RuntimeError(
                f"the suite's server for {backend} did not start: exit code {self._process.wait()}"
            )
        ready = json.loads(first)
        self.names: list[str] = ready["names"]
        self.skips: dict[str, str] = ready["skips"]
        self._asked: dict[str, list[Future[Outcome]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, test: str, timeout: float) -> Future[Outcome]:
        """Has a test run; what torch itself skips is known without."""
        future: Future[Outcome] = Future()
        if test in self.skips:
            future.set_result(Outcome(test, SKIPPED, self.skips[test]))
            return future
        with self._lock:
            self._asked.setdefault(test, []).append(future)
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"test": test, "timeout": timeout}) + "\n")
        self._process.stdin.flush()
        return future

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            outcome = Outcome(**json.loads(line))
            with self._lock:
                future = self._asked[outcome.test].pop(0)
            future.set_result(outcome)
        code = self._process.wait()
        with self._lock:
            for futures in self._asked.values():
                for future in futures:
                    future.set_exception(RuntimeError(f"the suite's server ended with exit code {code}"))
            self._asked.clear()

    def close(self) -> None:
        """Ends the server; what still runs is killed with it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
