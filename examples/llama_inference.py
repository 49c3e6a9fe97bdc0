"""Tensor-parallel generation with a Llama model of transformers (pip install transformers accelerate).

    torchrun --nproc-per-node 2 examples/llama_inference.py --backend ringreduce

The model has random weights and is made here.
"""

import json
import tempfile
from time import perf_counter

import torch
import torch.distributed as dist
from common import options
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

# About 100 M parameters, and a small one.
LARGE = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, vocab_size=16000)
SMALL = dict(hidden_size=256, intermediate_size=128, num_hidden_layers=2, vocab_size=128)


def load(size: dict, folder: str) -> torch.nn.Module:
    """Returns the model; if there are several ranks, each has its part of every layer."""
    heads = size["hidden_size"] // 64
    config = LlamaConfig(**size, num_attention_heads=heads, pad_token_id=0, eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)  # from_pretrained divides layers; from_config does not
    dist.barrier()  # save_pretrained writes on rank 0 only
    plan = {"tp_plan": "auto"} if dist.get_world_size() > 1 else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **plan).eval()


def main() -> None:
    small = dict(action="store_true", help="a model of 0.8 M parameters instead of 109 M")
    args = options(__doc__, tokens=dict(type=int, default=32), small=small)
    dist.init_process_group(args.backend)
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        model = load(SMALL if args.small else LARGE, folder[0])
        dist.barrier()  # rank 0's folder stays until all have read it
    prompt = torch.arange(1, 9)[None]
    with torch.inference_mode():
        model.generate(prompt, max_new_tokens=4)  # the first take longer
        start = perf_counter()
        found = model.generate(prompt, max_new_tokens=args.tokens, do_sample=False)[0, 8:].tolist()
    seconds = (perf_counter() - start) / args.tokens
    held = sum(getattr(x, "to_local", lambda x=x: x)().numel() for x in model.parameters())
    if dist.get_rank() == 0:
        job = {"backend": dist.get_backend(), "world": dist.get_world_size(), "parameters": held}
        print(json.dumps({**job, "seconds": round(seconds, 5), "tokens": found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
