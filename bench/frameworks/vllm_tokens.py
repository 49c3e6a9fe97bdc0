"""Compares vLLM's tokens per second over ringreduce with its own shared memory and with Gloo.

    make .venv-vllm/.ready
    .venv-vllm/bin/python -m bench.frameworks.vllm_tokens
    .venv-vllm/bin/python -m bench.frameworks.vllm_tokens --hosts 2 --rate 10gbit
    .venv-vllm/bin/python -m bench.frameworks.vllm_tokens --hosts 2 --rate 10gbit --ranks 4 --launches 5

Each launch starts examples/vllm_llama.py once for each contestant, in rotated order. A Llama model of 109 M parameters
with random weights answers a long prompt (prefill), and generates tokens one at a time (decode). vLLM's own operation
serves one host only. Hosts are network namespaces, each with its own /dev/shm, and need root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.network.hosts import Hosts
from bench.turns import rotated, span
from ringreduce import _engine
from ringreduce.bench.results import mode_of
from ringreduce.text import markdown

ROOT = Path(__file__).resolve().parents[2]
MEMORY, GLOO, OURS = "shared memory", "Gloo", "ringreduce"
PHASES = ("prefill", "decode")
# Two plugins: one lets vLLM do without its own operation, as where ranks do not share memory. The other tells it how
# many ranks a host has, where vLLM 0.32 takes a host to have one CPU, and so one rank.
PLUGINS = {
    "without_shared_memory": """
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
def register():
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
""",
    "ranks_of_a_host": """
import os
from vllm.platforms.cpu import CpuPlatform
def register():
    CpuPlatform.device_count = classmethod(lambda _: int(os.environ["BENCH_RANKS_OF_A_HOST"]))
""",
}
# Hides the machine's shared memory from vLLM.
OWN_MEMORY = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /dev/shm; exec "$@"', "sh"]


@contextmanager
def plugins() -> Iterator[str]:
    """Yields a folder with the plugins, as pip would install them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PLUGINS.items():
            about = Path(folder, f"{name}-1.dist-info")
            about.mkdir()
            about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            entry = f"[vllm.general_plugins]\n{name} = {name}:register\n"
            about.joinpath("entry_points.txt").write_text(entry)
            Path(folder, f"{name}.py").write_text(text)
        yield folder


def environment(name: str, folder: str, ranks_of_a_host: int) -> dict[str, str]:
    plugin = {MEMORY: "none", GLOO: "without_shared_memory", OURS: "ringreduce"}[name]
    return os.environ | {
        "VLLM_PLUGINS": f"{plugin},ranks_of_a_host",
        "BENCH_RANKS_OF_A_HOST": str(ranks_of_a_host),
        "PYTHONPATH": f"{ROOT}:{folder}",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }


def generate(name: str, options: Namespace, folder: str, hosts: Hosts | None) -> dict:
    """Returns what the example prints."""
    sizes = ["--tensor-parallel", str(options.ranks), "--tokens", str(options.tokens)]
    command = [sys.executable, str(ROOT / "examples" / "vllm_llama.py"), *sizes]
    command += ["--prompt", str(options.prompt), *(["--small"] if options.small else [])]
    own = environment(name, folder, options.ranks // options.hosts)
    if hosts is None:
        done = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True)
        return answer(done.stdout)
    command += ["--hosts", str(len(hosts)), "--address", hosts[0].address]
    started = [
        host.popen(
            [*OWN_MEMORY, *command, "--host", str(host.index)],
            env=own | {"VLLM_HOST_IP": host.address, "GLOO_SOCKET_IFNAME": host.interface},
            stdout=subprocess.PIPE if host.index == 0 else None,
            text=True,
        )
        for host in hosts
    ]
    try:
        printed, _ = started[0].communicate()
    finally:
        hosts.kill()
    return answer(printed)


def answer(printed: str) -> dict:
    (found,) = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    return found


def launch(number: int, names: list[str], options: Namespace, folder: str) -> dict[str, dict]:
    found = {}
    for name in rotated(names, number):
        if options.hosts == 1:
            found[name] = generate(name, options, folder, None)
        else:
            with Hosts(options.hosts, options.rate) as hosts:
                found[name] = generate(name, options, folder, hosts)
        served = {module for groups in found[name]["groups"] for module, _ in groups.values()}
        assert (served == {"torch_backend"}) == (name == OURS), served
        print(f"launch {number}: {name}: {[found[name][phase] for phase in PHASES]}", file=sys.stderr)
    *others, last = found.values()
    for one in others:
        if one["tokens"] != last["tokens"] or abs(one["logprob"] - last["logprob"]) > 0.01:
            raise SystemExit(f"the contestants generate different tokens: {found}")
    return found


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="of all hosts together")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="10gbit", help="of each host's link")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="to generate")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--small", action="store_true", help="a model of 1.4 M parameters: to try it")
    options = parser.parse_args()
    names = [MEMORY, GLOO, OURS] if options.hosts == 1 else [GLOO, OURS]
    launches, modes = [], []
    with plugins() as folder:
        for number in range(options.launches):
            before = _engine.probe_exchange()
            launches.append(launch(number, names, options, folder))
            modes.append(mode_of(before, _engine.probe_exchange()))
    rows = [["tokens/s", *PHASES, *(f"of {name}'s, {phase}" for name in names[:-1] for phase in PHASES)]]
    for name in names:
        rates = [f"{np.median([one[name][phase] for one in launches]):.1f}" for phase in PHASES]
        rows.append(
            [name, *rates, *(of(launches, name, other, phase) for other in names[:-1] for phase in PHASES)]
        )
    print(f"{options.ranks} ranks, {options.hosts} hosts, exchange {', '.join(modes)}\n\n{markdown(rows)}")


def of(launches: list[dict], name: str, other: str, phase: str) -> str:
    """Returns how many times the other's rate it is: the median, and the range of the launches."""
    ratios = [one[name][phase] / one[other][phase] for one in launches]
    return f"{np.median(ratios):.2f} x ({span(ratios)})"


if __name__ == "__main__":
    main()
