"""Training programs for frameworks that start Gloo by themselves. None of them knows of ringreduce.

Rank 0 prints a line of JSON: the losses, the seconds of a step, and the module of the class that serves the ranks.
as_gloo.py starts them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

WARM_UP, BATCH = 2, 2  # steps without a time; samples of a rank and step


class Job:
    """What a rank has seen of its training."""

    def __init__(self, steps: str, width: str) -> None:
        torch.manual_seed(0)
        self.steps, self.width = int(steps), int(width)
        self.losses: list[float] = []
        self.starts: list[float] = []

    def watch(self, model: nn.Module) -> nn.Module:
        """Has the model note when a step begins."""
        model.register_forward_pre_hook(lambda *_: self.starts.append(perf_counter()))
        return model

    def model(self) -> nn.Module:
        layers = (layer for _ in range(12) for layer in (nn.Linear(self.width, self.width), nn.Tanh()))
        return self.watch(nn.Sequential(*layers, nn.Linear(self.width, 1)))

    def samples(self, ranks: int = 2) -> TensorDataset:
        x = torch.randn(ranks * BATCH * self.steps, self.width)
        return TensorDataset(x, x.sum(1, keepdim=True))

    def summary(self, served_by: str) -> dict[str, Any]:
        seconds = float(np.median(np.diff(self.starts[WARM_UP:])))
        return {"losses": self.losses, "seconds": seconds, "served by": served_by}

    def report(self, group: Any = None) -> dict[str, Any]:
        """Returns what rank 0 prints, and prints it there."""
        found = self.summary(served_by(group))
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps(found), flush=True)
        return found


def served_by(group: Any = None) -> str:
    """Returns the module of the class that serves a group."""
    group = group or dist.distributed_c10d._get_default_group()
    return type(group._get_backend(torch.device("cpu"))).__module__.split(".")[0]


def accelerate(job: Job) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = job.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(job.samples(), BATCH))
    for x, y in loader:
        loss = mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        job.losses.append(accelerator.reduce(loss.detach(), "mean").item())
    job.report()
    accelerator.end_training()


def notebook(job: Job) -> None:
    """The ranks are forked, as in a notebook."""
    from accelerate import notebook_launcher

    notebook_launcher(accelerate, (job,), num_processes=2)


def _llama(job: Job) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": job.width, "intermediate_size": 3 * job.width, "vocab_size": 64}
    config = LlamaConfig(**size, num_hidden_layers=12, num_attention_heads=4, pad_token_id=0, eos_token_id=1)
    return job.watch(LlamaForCausalLM(config))


def _sentences(job: Job) -> list[dict[str, list[int]]]:
    words = torch.randint(2, 64, (2 * BATCH * job.steps, 8)).tolist()
    return [{"input_ids": line, "labels": line} for line in words]


QUIET = {
    "use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_steps": 1,
    "per_device_train_batch_size": BATCH, "num_train_epochs": 1,
}  # fmt: skip


def _fitted(job: Job, trainer: Any) -> None:
    trainer.train()
    job.losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    job.report()
    dist.destroy_process_group()


def transformers(job: Job) -> None:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, ddp_backend="gloo", **QUIET)
        _fitted(job, Trainer(_llama(job), arguments, train_dataset=_sentences(job)))


def trl(job: Job) -> None:
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {"<pad>": 0, "<eos>": 1} | {f"w{one}": one for one in range(2, 64)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, "<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(folder, bf16=False, gradient_checkpointing=False, **QUIET)
        data = Dataset.from_list(_sentences(job))
        trainer = SFTTrainer(_llama(job), arguments, train_dataset=data, processing_class=tokenizer)
        _fitted(job, trainer)


def lightning(job: Job) -> None:
    """The ranks are started by Lightning, as from a shell."""
    from lightning import LightningModule, Trainer

    class Regression(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()

        def training_step(self, pair: list[torch.Tensor], _: int) -> torch.Tensor:
            x, y = pair
            loss = mse_loss(self.model(x), y)
            job.losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
    trainer.fit(Regression(), DataLoader(job.samples(), BATCH))
    os.environ["RANK"] = str(trainer.global_rank)
    job.report()


def deepspeed(job: Job) -> None:
    import deepspeed

    model = job.model()
    config = {"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 3}}
    config |= {"zero_allow_untested_optimizer": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, training_data=job.samples()
    )
    for x, y in loader:
        loss = mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        deepspeed.comm.all_reduce(total)
        job.losses.append(total.item() / 2)
    job.report()
    dist.destroy_process_group()


def _data_parallel(job: Job, model: nn.Module, batch: Callable[[], Any], loss_of: Callable[..., Any]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(job.steps):
        loss = loss_of(model, *batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        job.losses.append(total.item() / dist.get_world_size())


def ray(job: Job) -> None:
    """Ray starts the workers."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

    def train(given: dict[str, str]) -> None:
        mine = Job(given["steps"], given["width"])
        model = prepare_model(mine.model())
        batches = iter(prepare_data_loader(DataLoader(mine.samples(), BATCH)))
        _data_parallel(mine, model, lambda: next(batches), lambda model, x, y: mse_loss(model(x), y))
        if dist.get_rank() == 0:
            with open(given["found"], "w") as file:
                json.dump(mine.report(), file)

    with tempfile.TemporaryDirectory() as folder:
        given = {"steps": str(job.steps), "width": str(job.width), "found": f"{folder}/found"}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        where, size = RunConfig(storage_path=folder), ScalingConfig(num_workers=2)
        TorchTrainer(train, train_loop_config=given, run_config=where, scaling_config=size).fit()
        ray.shutdown()
        with open(given["found"]) as file:
            print(file.read())


def rllib(job: Job) -> None:
    """Ray starts the learners, and a step is a training iteration of PPO."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .learners(num_learners=2, num_gpus_per_learner=0)
        .rl_module(model_config={"fcnet_hiddens": [job.width] * 12})
        .training(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=4)
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    for _ in range(job.steps):
        job.starts.append(perf_counter())
        learners = algorithm.train()["learners"]["default_policy"]
        job.losses.append(float(learners["total_loss"]))
    found = algorithm.learner_group.foreach_learner(lambda _: served_by())
    print(json.dumps(job.summary(found.result_or_errors[0].get())))
    algorithm.stop()
    ray.shutdown()


def torchft(job: Job) -> None:
    """Every rank is a replica."""
    from torchft import Manager, Optimizer, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    shared, rank, ranks = next(dist.rendezvous("env://"))
    server = LighthouseServer("[::]:0", min_replicas=ranks) if rank == 0 else None
    if server:
        shared.set("lighthouse", server.address().rpartition(":")[2])
    store, group = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False), ProcessGroupGloo()
    manager = Manager(
        pg=group, load_state_dict=lambda _: None, state_dict=lambda: {}, min_replica_size=ranks, rank=0,
        world_size=1, store_addr="localhost", store_port=store.port, hostname="localhost", use_async_quorum=False,
        lighthouse_addr=f"http://localhost:{shared.get('lighthouse').decode()}", replica_id=f"replica{rank}_",
    )  # fmt: skip
    model = job.model()
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.01))
    for x, y in DataLoader(job.samples(), 2 * BATCH):
        optimizer.zero_grad()
        loss = mse_loss(model(x.chunk(2)[rank]), y.chunk(2)[rank])
        loss.backward()
        for work in [manager.allreduce(p.grad) for p in model.parameters()]:
            work.wait()
        optimizer.step()
        mean = loss.detach().clone()
        manager.allreduce(mean).wait()
        job.losses.append(mean.item())
    job.report(group._pg)
    manager.shutdown(wait=False)
    shared.add("done", 1)
    while server and shared.add("done", 0) < ranks:
        pass


def pyg(job: Job) -> None:
    """PyTorch Geometric's example of several processes: torch's sampler divides the graphs."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, Sequential, global_mean_pool

    dist.init_process_group("gloo")
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    nodes = [torch.randn(4, job.width) for _ in range(2 * BATCH * job.steps)]
    graphs = [Data(x, edges, y=x.mean().view(1, 1)) for x in nodes]
    layers = [(GCNConv(job.width, job.width), "x, edge_index -> x") for _ in range(12)]
    last = [(global_mean_pool, "x, batch -> x"), (nn.Linear(job.width, 1), "x -> x")]
    model = DistributedDataParallel(job.watch(Sequential("x, edge_index, batch", layers + last)))
    batches = iter(DataLoader(graphs, BATCH, sampler=DistributedSampler(graphs)))
    loss_of = lambda model, one: mse_loss(model(one.x, one.edge_index, one.batch), one.y)  # noqa: E731
    _data_parallel(job, model, lambda: (next(batches),), loss_of)
    job.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](Job(*sys.argv[2:]))
