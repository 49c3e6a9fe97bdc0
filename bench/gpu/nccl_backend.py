"""torch's own NCCL backend over our stand-in for NCCL: two processes on one card, which NCCL itself refuses.

LD_PRELOAD=ringreduce/libringreduce_nccl.so python3 bench/gpu/nccl_backend.py
"""

from __future__ import annotations

import sys
import tempfile

from record import LEFT_OUT


def rank(number: int, world: int, place: str) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    store = dist.FileStore(f"{place}/store", world)
    dist.init_process_group("nccl", store=store, rank=number, world_size=world)
    for count in (1, 1000, 1 << 20):
        x = torch.arange(count, device="cuda", dtype=torch.float32) % 7 + number
        dist.all_reduce(x)
        wanted = world * (torch.arange(count, dtype=torch.float32) % 7) + sum(range(world))
        if not torch.equal(x.cpu(), wanted):
            sys.exit(f"wrong result: rank {number}, {count} elements")
    given = torch.full((1000,), float(number), device="cuda")
    out = torch.zeros(1000 * world, device="cuda")
    dist.all_gather_into_tensor(out, given)
    if not torch.equal(out.cpu(), torch.arange(world, dtype=torch.float32).repeat_interleave(1000)):
        sys.exit(f"wrong result: rank {number}, all_gather")
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    try:
        import torch
        import torch.multiprocessing
    except ImportError as problem:
        print(f"there is no torch: {problem}")
        return LEFT_OUT
    if not torch.backends.cuda.is_built():
        print("this torch has no CUDA")
        return LEFT_OUT
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(rank, (2, place), nprocs=2)
    print("two ranks of torch's NCCL backend share a card")
    return 0


if __name__ == "__main__":
    sys.exit(main())
