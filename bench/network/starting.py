"""Tests every way to start ranks: whether they meet without further settings, and how long that takes.

    python3 -m bench.network.starting --ranks 2 --programs init,torch,trainer
    python3 -m bench.network.starting --ranks 16,64 --ways srun,mpich

Times are seconds from the command to the end of the first all-reduce on the slowest rank. For the trainer, they are
seconds to its end. Hosts are network namespaces of this machine (hosts.py), which need root. Ways whose programs are
not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.network.clusters import VENDORS, Mpirun, Sshd, environment
from bench.network.hosts import Hosts

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 280.0  # seconds for one start
PORT = 29_500
MOST = 64  # ranks of a host
# All hosts are on one machine, so ringreduce would otherwise use shared memory between them.
HOST = "import json, os, platform, sys, time; os.environ['RINGREDUCE_HOST'] = platform.node()\n"
SAY = """
times = {"rank": rank, "began": began, "imported": imported, "met": met, "ended": time.time()}
sys.stdout.write(json.dumps(times) + "\\n")
sys.stdout.flush()
"""
# The start of the process, according to the kernel.
BEGAN = """
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks
"""
INIT = f"""
import numpy as np, ringreduce
imported = time.time()
def work(comm):
    met, rank = time.time(), comm.rank
    x = np.full(1000, comm.rank + 1.0)
    comm.all_reduce(x)
    assert x[0] == comm.size * (comm.size + 1) // 2
    {SAY.strip().replace(chr(10), chr(10) + "    ")}
"""
PROGRAMS = {
    "init": HOST + BEGAN + INIT + "with ringreduce.init(timeout=200) as comm: work(comm)\n",
    "run": HOST + BEGAN + INIT + "ringreduce.run(work, int(sys.argv[1]), timeout=200)\n",
    "torch": HOST
    + BEGAN
    + """
import torch, torch.distributed as dist
imported = time.time()
dist.init_process_group("ringreduce")
met, rank = time.time(), dist.get_rank()
x = torch.full((1000,), rank + 1.0)
dist.all_reduce(x)
assert x[0] == dist.get_world_size() * (dist.get_world_size() + 1) // 2
"""
    + SAY
    + "dist.destroy_process_group()\n",
    "trainer": HOST
    + BEGAN
    + """
import runpy
tiny = "--layers 1 --width 16 --heads 2 --context 16 --batch 64 --steps 2 --text-bytes 1048576"
sys.argv[1:] = tiny.split() + sys.argv[1:]
try:
    runpy.run_module("ringreduce.train", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
imported = met = began
rank = -1
"""
    + SAY,
}


class Start:
    """One or several hosts, the number of ranks to start on them, and the script that the ranks run."""

    def __init__(self, hosts: Hosts, folder: Path, ranks: int, number: int, script: Path) -> None:
        self.hosts, self.folder, self.ranks, self.script = hosts, folder, ranks, str(script)
        self.used = [hosts[i] for i in range(number)]
        self.each = ranks // number
        self.placed = {host.name: self.each for host in self.used}

    def run(self, *commands: tuple[int, Sequence[str]], **variables: str) -> list[str]:
        """Runs each command on the host with the given number. Returns the lines that they print."""
        processes = [
            self.hosts[number].popen(
                list(words), env=environment(OMP_NUM_THREADS="1", **variables), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for number, words in commands
        ]  # fmt: skip
        end = time.monotonic() + LIMIT
        try:
            return _printed(process.communicate(timeout=end - time.monotonic()) for process in processes)
        finally:
            for process in processes:
                process.kill()


def _printed(outputs) -> list[str]:
    lines, errors = [], []
    for out, err in outputs:
        lines += [line for line in out.splitlines() if line.startswith('{"rank"')]
        errors += (out + err).strip().splitlines()[-3:]
    return lines or errors


def torchrun(start: Start) -> list[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(start.each)]
    if len(start.used) == 1:
        return start.run((0, [*words, "--standalone", start.script]))
    words += ["--nnodes", str(len(start.used)), "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"{start.used[0].name}:{PORT}", start.script]
    return start.run(*((host.index, words) for host in start.used))


def mpirun(vendor: str) -> Callable[[Start], list[str]]:
    def start(start: Start) -> list[str]:
        launcher = Mpirun(vendor, start.hosts, start.folder)
        done = launcher.run(start.placed, [sys.executable, start.script], LIMIT)
        return _printed([(done.stdout, done.stderr)])

    return start


def ringreduce_run(start: Start) -> list[str]:
    words = [sys.executable, "-m", "ringreduce", "run"]
    if len(start.used) == 1:
        return start.run((0, [*words, "-n", str(start.ranks), start.script]))
    placed = ",".join(f"{host}:{count}" for host, count in start.placed.items())
    ssh = f"ssh -F {start.folder}/ssh_config"
    return start.run((0, [*words, "--hosts", placed, "--ssh", ssh, start.script]))


def by_hand(start: Start) -> list[str]:
    """Sets what docs/running.md names, and MASTER_ADDR and MASTER_PORT for torch."""
    address = "localhost" if len(start.used) == 1 else start.used[0].name
    shared = {"WORLD_SIZE": str(start.ranks), "MASTER_ADDR": address, "MASTER_PORT": str(PORT)}
    if len(start.used) > 1:
        shared |= {
            "RINGREDUCE_RENDEZVOUS": f"{address}:{PORT + 1}",
            "RINGREDUCE_SECRET": secrets.token_hex(16),
        }
    ranks = "for r in $(seq $0 $1); do RANK=$r $2 $3 & done; wait"
    first = [(host.index, number * start.each) for number, host in enumerate(start.used)]
    commands = [
        (index, ["sh", "-c", ranks, str(begin), str(begin + start.each - 1), sys.executable, start.script])
        for index, begin in first
    ]
    return start.run(*commands, **shared)


def in_python(start: Start) -> list[str]:
    """Calls ringreduce.run, which the trainer uses if no launcher has started it."""
    if "trainer" in start.script:
        return start.run((0, [sys.executable, start.script, "--ranks", str(start.ranks)]))
    script = Path(start.script).with_name("run.py")
    script.write_text(PROGRAMS["run"])
    return start.run((0, [sys.executable, str(script), str(start.ranks)]))


class Slurm:
    """Starts ranks with srun, or with sbatch and a script that calls srun, on a test cluster."""

    def __init__(self, cluster: Any, folder: Path, by_script: bool) -> None:
        self._cluster, self._folder, self._by_script = cluster, folder, by_script

    def __call__(self, start: Start) -> list[str]:
        size = [f"-N{len(start.used)}", f"-n{start.ranks}", f"--ntasks-per-node={start.each}"]
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if not self._by_script:
            done = self._cluster.run(["srun", *size, sys.executable, start.script], LIMIT, **variables)
            return _printed([(done.stdout, done.stderr)])
        script, output = self._folder / "job.sh", self._folder / "job.out"
        script.write_text(f"#!/bin/sh\nsrun {shlex.join([sys.executable, start.script])}\n")
        done = self._cluster.run(["sbatch", "-W", *size, "-o", str(output), str(script)], LIMIT, **variables)
        return _printed([(output.read_text() if output.exists() else "", done.stderr)])


def _slurm() -> types.ModuleType:
    sys.path.append(str(ROOT / "tests" / "start" / "slurm"))
    import cluster

    return cluster


def measured(way: Callable[[Start], list[str]], start: Start) -> dict[str, float]:
    """Returns the seconds after which the slowest rank has started, imported, met the others, and finished."""
    began = time.time()
    lines = way(start)
    wanted = start.ranks
    try:
        rows = [json.loads(line) for line in lines]
        if len({row["rank"] for row in rows}) not in (wanted, 1):
            raise ValueError
    except ValueError:
        return {"failed": " / ".join(lines)[-400:]}  # type: ignore[dict-item]
    return {name: max(row[name] for row in rows) - began for name in ("began", "imported", "met", "ended")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", help="ways to start, such as srun,mpich (all that are installed)")
    parser.add_argument("--ranks", default="2,16,64")
    parser.add_argument("--programs", default="init", help="some of init, torch, trainer (init)")
    parser.add_argument("--hosts", default="1,2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starting-") as name, Hosts(2, rate=None) as hosts:
        folder = Path(name)
        ways: dict[str, Callable[[Start], list[str]]] = {
            "ringreduce run": ringreduce_run,
            "ringreduce.run": in_python,
            "by hand": by_hand,
            "torchrun": torchrun,
        }
        ways |= {vendor: mpirun(vendor) for vendor in VENDORS if not Mpirun(vendor, hosts, folder).missing()}
        started, slurm = None, _slurm()
        wanted = options.ways.split(",") if options.ways else None
        if not slurm.missing() and (wanted is None or {"srun", "sbatch"} & {*wanted}):
            started = slurm.Cluster(2, MOST).__enter__()
            ways |= {"srun": Slurm(started, folder, False), "sbatch": Slurm(started, folder, True)}
        try:
            if not Sshd.missing():
                Sshd(hosts, folder).__enter__()
            table(options, {key: ways[key] for key in wanted or ways if key in ways}, hosts, folder)
        finally:
            if started is not None:
                started.__exit__(None, None, None)


def table(options: argparse.Namespace, ways: dict[str, Callable], hosts: Hosts, folder: Path) -> None:
    """Prints a row for each way and number of hosts, with a column for each program and number of ranks."""
    columns = [
        (program, int(ranks)) for program in options.programs.split(",") for ranks in options.ranks.split(",")
    ]
    print(
        "| started by | hosts |", " | ".join(f"{program}, {ranks} ranks" for program, ranks in columns), "|"
    )
    print("|---" * (2 + len(columns)) + "|")
    for name, way in ways.items():
        for number in map(int, options.hosts.split(",")):
            if number > 1 and way is in_python:
                continue
            print(f"| {name} | {number} |", end="", flush=True)
            for program, ranks in columns:
                if way is in_python and program == "torch":
                    print(" no launcher |", end="", flush=True)
                    continue
                script = folder / f"start_{program}.py"  # not torch.py
                script.write_text(PROGRAMS[program])
                found = measured(way, Start(hosts, folder, ranks, number, script))
                print(f" {cell(found)} |", end="", flush=True)
                print(name, number, program, ranks, found, file=sys.stderr, flush=True)
            print(flush=True)


def cell(found: dict[str, float]) -> str:
    if "failed" in found:
        return "fails"
    if found["imported"] == found["began"]:
        return f"{found['ended']:.1f} s"
    return f"{found['ended']:.1f} s (meeting {found['met'] - found['imported']:.2f} s)"


if __name__ == "__main__":
    main()
