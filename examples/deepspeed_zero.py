"""ZeRO under DeepSpeed (pip install deepspeed).

    torchrun --nproc-per-node 2 examples/deepspeed_zero.py --stage 3 [--bfloat16] [--save FOLDER | --load FOLDER]

Stage 1 divides the optimizer's states among the ranks, stage 2 also the gradients, and stage 3 also the parameters.
"""

import deepspeed
import torch
import torch.distributed as dist
from common import average, batch, make_model, options, report
from torch.nn.functional import mse_loss


def main() -> None:
    args = options(
        __doc__,
        stage=dict(type=int, default=3, choices=[1, 2, 3]),
        bfloat16=dict(action="store_true", help="compute and send in bfloat16"),
        save=dict(help="the folder to save a checkpoint to"),
        load=dict(help="the folder to load a checkpoint from"),
        comms_log=dict(action="store_true", help="print what DeepSpeed's communication logger has seen"),
    )
    deepspeed.init_distributed(dist_backend=args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    model = make_model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.003),
        config={
            "train_micro_batch_size_per_gpu": args.batch // world,
            "zero_optimization": {"stage": args.stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": args.bfloat16},
            "comms_logger": {"enabled": args.comms_log, "prof_all": True, "verbose": False, "debug": False},
        },
    )
    first = engine.load_checkpoint(args.load)[1]["step"] if args.load else 0

    losses = []
    for step in range(first, first + args.steps):
        x, y = (part.to(engine.get_data_types()[0]) for part in batch(args, step, rank, world))
        loss = mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(average(loss))

    if args.save:
        engine.save_checkpoint(args.save, client_state={"step": first + args.steps})
    if args.comms_log:
        deepspeed.comm.log_summary()
    report(args, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
