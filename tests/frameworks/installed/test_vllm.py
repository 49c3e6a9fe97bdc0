"""vLLM's workers generate the same tokens over ringreduce as over vLLM's own operation in shared memory."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

import pytest

from tests.frameworks.installed.programs import ENVIRONMENT, EXAMPLES, run

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)

UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # by itself, vLLM wants a NUMA node for each rank
TOKENS = 16
SMALL = ["--small", "--tokens", str(TOKENS)]


def generated(*arguments: str, **variables: str) -> tuple[list[int], float, set[str], int]:
    """The tokens, the logarithm of the first ones' probability, who served all groups, and the fewest collectives."""
    found = run("vllm_llama.py", *SMALL, *arguments, **UNBOUND, **variables)
    served = [group for worker in found["groups"] for group in worker.values()]
    return found["tokens"], found["logprob"], {one for one, _ in served}, min(count for _, count in served)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, ranks, switch",
    [
        ("--tensor-parallel", 2, "VLLM_PLUGINS=ringreduce"),
        ("--tensor-parallel", 4, "RINGREDUCE_AS=gloo"),
        ("--pipeline-parallel", 2, "VLLM_PLUGINS=ringreduce"),
    ],
)
def test_tokens_are_those_of_vllm_alone(kind, ranks, switch):
    """Which has our plugin installed, but not named. A rank's random weights depend on the number of ranks."""
    tokens, likely, served, _ = generated(kind, str(ranks))
    assert "torch_backend" not in served and len(tokens) == TOKENS
    ours, as_likely, served, collectives = generated(kind, str(ranks), **dict([switch.split("=")]))
    assert ours == tokens and as_likely == pytest.approx(likely, abs=1e-3)
    assert served == {"torch_backend"}
    if kind == "--tensor-parallel":  # two of each of two layers, one for the embedding, one for the logits
        assert collectives > 6 * TOKENS


@pytest.mark.slow
def test_switched_on_one_of_two_hosts():
    """Both end with an error, one of which names the rank and the variable."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    command = [sys.executable, str(EXAMPLES / "vllm_llama.py"), *SMALL, "--tensor-parallel", "2"]
    started = [
        subprocess.Popen(
            [*command, "--hosts", "2", "--host", str(host), "--port", port],
            env=ENVIRONMENT | UNBOUND | {"VLLM_HOST_IP": "127.0.0.1", "VLLM_PLUGINS": plugins},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host, plugins in enumerate(["ringreduce", "none"])
    ]
    said = [one.communicate(timeout=300)[0] for one in started]
    assert all(one.returncode for one in started), said
    assert "rank 1 uses Gloo itself: RINGREDUCE_AS=gloo is set on rank 0, but not there" in "".join(said)
