"""transformers' Trainer with DistributedDataParallel (pip install transformers accelerate).

    torchrun --nproc-per-node 2 examples/transformers_trainer.py --backend ringreduce

On CPUs, Accelerate, which the Trainer uses, accepts only the backends "gloo" and "mpi" in ``ddp_backend``. But the
Trainer uses a process group that exists already, so pass the backend to init_process_group.
"""

import tempfile

import torch
import torch.distributed as dist
from common import average, options, report
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CONFIG = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
)


class Averaging(Trainer):
    """Keeps the losses of all ranks' batches."""

    losses: list[float]

    def training_step(self, *args: object, **more: object) -> torch.Tensor:
        loss = super().training_step(*args, **more)
        self.losses.append(average(loss))
        return loss


def main() -> None:
    args = options(__doc__)
    dist.init_process_group(args.backend)
    text = torch.arange(16) * torch.arange(1, args.steps * args.batch + 1)[:, None] % CONFIG.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            per_device_train_batch_size=args.batch // dist.get_world_size(),
            num_train_epochs=1,
            learning_rate=0.01,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        data = [{"input_ids": line, "labels": line} for line in text]
        trainer = Averaging(LlamaForCausalLM(CONFIG), settings, train_dataset=data)
        trainer.losses = []
        trainer.train()
    report(args, trainer.losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
