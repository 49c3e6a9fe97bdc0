"""vLLM's workers generate the same tokens over ringreduce as over vLLM's own operation, and its servers answer."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace

import pytest

from bench.frameworks import vllm_tokens
from bench.network.hosts import Hosts
from tests.frameworks.installed.programs import ENVIRONMENT, EXAMPLES, run

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)

# Two launches, of each of which programs.py waits 500 seconds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]

UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # by itself, vLLM wants a NUMA node for each rank
TOKENS = 16
SMALL = ["--small", "--tokens", str(TOKENS)]
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 128, "max_position_embeddings": 2048,
}  # fmt: skip
REQUEST = {
    "prompt": [1, 2, 3, 4], "max_tokens": 4, "temperature": 0, "detokenize": False, "return_token_ids": True,
    "ignore_eos": True,
}  # fmt: skip
why_not = Hosts.permitted()


def generated(*arguments: str, **variables: str) -> tuple[list[int], float, set[str], int]:
    """The tokens, the logarithm of the first ones' probability, who served all groups, and the fewest collectives."""
    found = run("vllm_llama.py", *SMALL, *arguments, **UNBOUND, **variables)
    served = [group for worker in found["groups"] for group in worker.values()]
    return found["tokens"], found["logprob"], {one for one, _ in served}, min(count for _, count in served)


@pytest.mark.parametrize(
    "tensor, pipeline, switch",
    [
        (2, 1, "VLLM_PLUGINS=ringreduce"),
        (4, 1, "RINGREDUCE_AS=gloo"),
        (1, 2, "VLLM_PLUGINS=ringreduce"),
        (2, 2, "RINGREDUCE_AS=gloo"),
    ],
)
def test_tokens_are_those_of_vllm_alone(tensor, pipeline, switch):
    """Which has our plugin installed, but not named. A rank's random weights depend on the number of ranks."""
    kind = ["--tensor-parallel", str(tensor), "--pipeline-parallel", str(pipeline)]
    tokens, likely, served, _ = generated(*kind)
    assert "torch_backend" not in served and len(tokens) == TOKENS
    ours, as_likely, served, collectives = generated(*kind, **dict([switch.split("=")]))
    assert ours == tokens and as_likely == pytest.approx(likely, abs=1e-3)
    assert served == {"torch_backend"}
    if pipeline == 1:  # two of each of two layers, one for the embedding, one for the logits
        assert collectives > 6 * TOKENS


@pytest.mark.skipif(why_not is not None, reason=str(why_not))
@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_of_two_hosts_are_those_over_gloo(ranks):
    """Which vLLM uses between hosts. The comparison raises if tokens differ, or another backend serves than should."""
    options = Namespace(ranks=ranks, hosts=2, rate="10gbit", tokens=TOKENS, prompt=8, small=True)
    with vllm_tokens.plugins() as folder:
        vllm_tokens.launch(0, [vllm_tokens.GLOO, vllm_tokens.OURS], options, folder)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return str(one.getsockname()[1])


def asked(address: str, body: dict | None = None) -> str | None:
    """The server's answer; None before it listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            return answer.read().decode()
    except OSError as error:
        if isinstance(getattr(error, "reason", error), ConnectionError):
            return None
        raise


@pytest.mark.parametrize("kind, ranks", [("--data-parallel-size", 1), ("--pipeline-parallel-size", 2)])
def test_a_server_answers(kind, ranks, tmp_path):
    """Data-parallel engines of a model without experts are independent: each has groups of one rank."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(tmp_path), "--port", port, kind, "2"]
    command += ["--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32"]
    command += ["--kv-cache-memory-bytes", str(1 << 28)]
    command += [] if "pipeline" in kind else ["--enforce-eager"]  # as in examples/vllm_llama.py
    given = ENVIRONMENT | UNBOUND | {"VLLM_PLUGINS": "ringreduce", "RINGREDUCE_LOG": "info"}
    with log.open("w") as output:
        server = subprocess.Popen(command, env=given, stdout=output, stderr=output, start_new_session=True)
    try:
        while asked(f"http://127.0.0.1:{port}/health") is None:
            assert server.poll() is None
            time.sleep(0.2)
        request = REQUEST | {"model": str(tmp_path)}
        answers = [asked(f"http://127.0.0.1:{port}/v1/completions", request) for _ in range(3)]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        print(log.read_text())
    tokens = [json.loads(answer)["choices"][0]["token_ids"] for answer in answers]
    assert tokens == [tokens[0]] * 3 and len(tokens[0]) == REQUEST["max_tokens"]
    assert f"serves a process group of {ranks} ranks that asked for gloo" in log.read_text()


def test_switched_on_one_of_two_hosts():
    """Both end with an error, one of which names the rank and the variable."""
    port = free_port()
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
