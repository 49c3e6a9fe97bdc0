"""All settings: one model, which defines the flags, the keys of the file and the checks."""

from __future__ import annotations

import contextlib
import errno
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from ringreduce.settings import Table, first_problem, load

__all__ = ["Config", "ConfigError", "ToldError", "add_flags", "from_flags", "replace", "writing"]


class ConfigError(ValueError):
    """A setting is invalid. The message is one line that names the setting."""


class ToldError(ConfigError):
    """An error that rank 0 raises too. Only that rank reports it."""


@contextlib.contextmanager
def writing(name: str, place: object) -> Iterator[None]:
    """Converts an OSError to a ConfigError that names the setting, the place and the reason."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ConfigError(f"{name}: {place}: {'the disk is full' if full else error.strerror}") from error


def setting(default: Any, text: str, **limits: Any) -> Any:
    return Field(default, description=text, **limits)


class RareExchange(Table):
    """Low communication: the ranks train on their own, and synchronise now and then."""

    low_communication: Literal["none", "local_sgd", "diloco", "streaming_diloco"] = setting(
        "none", "how the ranks' models are synchronised, instead of their gradients"
    )
    local_steps: int = setting(20, "steps between two synchronisations", ge=1)
    synchronous_steps: int = setting(0, "steps at the start that local_sgd synchronises one by one", ge=0)
    adaptive_steps: bool = setting(False, "let slower ranks skip steps of local_sgd and diloco")
    outer_learning_rate: float = setting(0.7, "learning rate of DiLoCo's outer optimizer", ge=0, lt=1e38)
    outer_momentum: float = setting(0.9, "its Nesterov momentum", ge=0, lt=1)
    fragments: int = setting(4, "parts of the model that streaming_diloco synchronises in turn", ge=1)
    overlap: int = setting(1, "steps in which a fragment's outer gradients travel", ge=0)
    mixing: float = setting(
        0.5, "share of its own parameters that a rank keeps if there is an overlap", ge=0, le=1
    )


class UnequalRanks(Table):
    """Unequal ranks: shares of the batch that follow the ranks' speed."""

    balance: bool = setting(False, "give faster ranks more samples of each batch")
    balance_every: int = setting(10, "steps between two comparisons of the ranks' speeds", ge=1)


class Config(RareExchange, UnequalRanks):
    """All settings of a run.

    Batch sizes count the samples of all ranks. A sample of the GPT is ``context`` bytes long.

    Raises:
        ConfigError: A setting is invalid, or two of them do not fit together.
    """

    model_config = ConfigDict(strict=True)

    task: Literal["gpt", "digits"] = setting("gpt", "a GPT on Python's sources, or a convnet on digits")
    layers: int = setting(4, "layers of the GPT", ge=1)
    heads: int = setting(4, "attention heads of the GPT", ge=1)
    width: int = setting(128, "size of the GPT's embeddings", ge=1)
    context: int = setting(128, "context length of the GPT in bytes", ge=1)
    dropout: float = setting(0.0, "dropout of the GPT", ge=0, lt=1)
    channels: int = setting(16, "channels of the convnet's first layer", ge=1)
    text_bytes: int = setting(16 << 20, "bytes of Python's sources to use, including held-out files", ge=1)

    batch: int = setting(32, "global batch: samples in an optimizer step, over all ranks", ge=1)
    accumulation: int = setting(1, "backward passes per rank and step", ge=1)
    steps: int = setting(300, "optimizer steps", ge=0)
    seed: int = setting(0, "seed of the weights, sample order and dropout", ge=0, lt=1 << 64)

    optimizer: Literal["adamw", "sgd", "lars", "lamb"] = setting(
        "adamw", "the optimizer; sgd and lars have momentum; lars and lamb are for large batches"
    )
    learning_rate: float = setting(3e-3, "peak; with --base-batch, that of the base batch", ge=0, lt=1e38)
    base_batch: int = setting(0, "scale the learning rate by batch / base_batch; 0: off", ge=0)
    batch_scaling: Literal["linear", "sqrt"] = setting("linear", "scale it by this quotient, or by its root")
    warmup: int = setting(20, "steps in which the learning rate rises linearly", ge=0)
    schedule: Literal["cosine", "constant"] = setting("cosine", "learning rate after the warm-up")
    momentum: float = setting(0.9, "momentum of sgd and lars", ge=0, lt=1)
    trust_coefficient: float = setting(0.001, "trust coefficient of lars", gt=0, lt=float("inf"))
    weight_decay: float = setting(0.1, "weight decay of matrices; biases and norms have none", ge=0, lt=1e38)
    clip: float = setting(1.0, "highest norm of the gradient; 0: no clipping", ge=0)
    autocast: bool = setting(False, "compute in bfloat16 where torch considers it safe")

    bucket_mb: float = setting(1.0, "MiB of gradients that are sent together", gt=0, lt=float("inf"))
    first_bucket_mb: float = setting(0.25, "MiB of gradients in the first bucket", gt=0, lt=float("inf"))
    static_graph: bool = setting(False, "assume that all steps use the same parameters")
    wire: Literal["float32", "bf16", "fp16", "int8", "fp8"] = setting(
        "float32", "format in which gradients, or DiLoCo's outer gradients, are sent"
    )
    compression: Literal["none", "fp16", "bf16", "int8", "sign", "topk", "powersgd"] = setting(
        "none", "compression of gradients"
    )
    top_fraction: float = setting(0.01, "fraction of the gradient's values that topk sends", gt=0, le=1)
    matrix_rank: int = setting(4, "rank of powersgd's matrices", ge=1)
    sharded_optimizer: Literal[0, 1, 2] = setting(0, "ZeRO stage: what is sharded over the ranks")
    parameter_server: bool = setting(
        False, "push gradients to servers on all ranks, instead of averaging them"
    )
    staleness: int = setting(0, "steps that a rank may be ahead, with parameter_server; -1: no bound", ge=-1)
    sync_batch_norm: bool = setting(True, "batch norm over the samples of all ranks")
    reproducible: bool = setting(False, "same bits over any transport; implies --threads 1 by default")
    logical_shards: int = setting(
        0, "shards of the batch, for the same bits on any number of ranks; implies --threads 1", ge=0
    )

    evaluate_every: int = setting(50, "steps between evaluations; 0: only at the end", ge=0)
    evaluate_samples: int = setting(512, "held-out samples in an evaluation, over all ranks", ge=1)
    checkpoints: str = setting("", "folder for checkpoints; without it, none are written")
    checkpoint_every: int = setting(100, "steps between checkpoints; the last step writes one too", ge=1)
    keep: int = setting(2, "number of checkpoints to keep", ge=1)
    resume: str = setting("", "a checkpoint, or auto for the newest intact one in the folder, if any")

    elastic: int = setting(
        0,
        "continue while at least this many ranks are left, and admit new ones; 0: a loss ends the run",
        ge=0,
    )
    elastic_copies: int = setting(1, "copies of each rank's part of a sharded optimizer, with elastic", ge=0)

    ranks: int = setting(1, "processes to start if there is no launcher", ge=1)
    threads: int = setting(
        0, "torch threads per rank; 0: as in the checkpoint, or the host's cores / ranks", ge=0, le=1024
    )
    timeout: float = setting(300.0, "seconds after which a rank stops waiting for another", ge=1)
    log_every: int = setting(10, "steps between lines of the log", ge=1)
    json_log: str = setting("", "log file in JSON-lines format")
    tensorboard: str = setting("", "folder for TensorBoard")
    plot: str = setting("", "file for a plot of the loss and of the time of a step")
    trace: str = setting("", "file for a timeline of all ranks in Chrome's format, for Perfetto")
    progress: bool = setting(True, "show a progress bar if standard error is a terminal")

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(first_problem(error)) from None
        _check_together(self)

    @field_validator("*", mode="before")
    @classmethod
    def _is_what_it_seems(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses True in the place of 1, and NaN, which pydantic takes to be within most limits."""
        choices = get_args(cls.model_fields[str(info.field_name)].annotation)
        if choices and isinstance(value, bool):
            raise PydanticKnownError("literal_error", {"expected": " or ".join(map(str, choices))})
        if value != value:
            raise PydanticKnownError("float_type")
        return value

    @property
    def fixed_threads(self) -> int:
        """The number of torch threads that the settings require, or 0. torch's sums depend on it in the last bits."""
        return self.threads or int(self.reproducible or self.logical_shards > 0)


PARTS = (RareExchange, UnequalRanks)


def replace(config: Config, **changes: Any) -> Config:
    return Config(**dict(config) | changes)


def _check_together(config: Config) -> None:
    shards, low = config.logical_shards, config.low_communication
    diloco = low in ("diloco", "streaming_diloco")
    exchanges = {
        "low_communication": low != "none",
        "wire": config.wire != "float32" and not diloco,
        "compression": config.compression != "none",
        "logical_shards": shards > 0,
        "sharded_optimizer 2": config.sharded_optimizer == 2,
        "sharded_optimizer 1": config.sharded_optimizer == 1 and low != "none",
        "balance": config.balance and (low != "none" or shards > 0),
        "parameter_server": config.parameter_server,
    }
    first, second, *_ = [*(name for name, chosen in exchanges.items() if chosen), "", ""]
    for wrong, text in (
        (config.width % config.heads, f"width: {config.width} is not a multiple of heads ({config.heads})"),
        (config.resume == "auto" and not config.checkpoints, "resume: auto needs a folder; set checkpoints"),
        (shards and config.accumulation > 1, "accumulation: logical_shards determines it; leave it at 1"),
        (shards and config.batch % shards, f"batch: {config.batch} is not a multiple of logical_shards ({shards})"),
        (shards and config.task == "digits", "logical_shards: batch norm needs whole batches; train the gpt"),
        (shards and config.threads > 1, "threads: logical_shards needs 1, because sums depend on the number"),
        (config.synchronous_steps and low != "local_sgd", "synchronous_steps: only local_sgd has them"),
        (config.adaptive_steps and low not in ("local_sgd", "diloco"), "adaptive_steps: not in this low_communication"),
        (
            low == "streaming_diloco" and config.overlap >= config.local_steps,
            f"overlap: {config.overlap} is not less than local_steps ({config.local_steps})",
        ),
        (
            config.balance and config.task == "digits" and config.sync_batch_norm,
            "balance: sync_batch_norm makes the ranks wait for each other in each layer; switch it off",
        ),
        (config.staleness and not config.parameter_server, "staleness: it needs parameter_server"),
        (
            config.parameter_server and config.task == "digits" and config.sync_batch_norm,
            "sync_batch_norm: ranks with a parameter_server do not step together; turn it off",
        ),
        (
            config.parameter_server and config.sharded_optimizer,
            "sharded_optimizer: the shards of a parameter_server have the optimizer's state",
        ),
        (config.elastic and config.trace, "trace: a timeline needs the same ranks in all steps; leave elastic at 0"),
        (config.elastic and shards, "logical_shards: cannot be divided among any number of ranks; leave elastic at 0"),
        (config.elastic and config.parameter_server, "parameter_server: survives losses by itself; leave elastic at 0"),
        (config.elastic and config.resume not in ("", "auto"), "resume: with elastic it must be auto"),
        (second, f"{second}: cannot be combined with {first}; both determine how gradients are exchanged"),
    ):  # fmt: skip
        if wrong:
            raise ConfigError(text)


# --- file and flags ------------------------------------------------------------------------------------------


def add_flags(parser: ArgumentParser) -> None:
    """Adds a flag for each setting. Flags that are not given are absent from the parsed options."""
    groups: dict[str, Any] = {}
    for part in PARTS:
        title, _, description = (part.__doc__ or "").partition(": ")
        groups |= dict.fromkeys(part.__annotations__, parser.add_argument_group(title, description))
    for name, field in Config.model_fields.items():
        kind: Any = field.annotation
        choices = get_args(kind)
        how: dict[str, Any] = {"action": BooleanOptionalAction}
        if choices:
            how = {"choices": choices, "type": type(choices[0])}
        elif kind is not bool:
            how = {"type": kind, "metavar": kind.__name__.upper()}
        text = f"{field.description} [{field.default}]"
        groups.get(name, parser).add_argument(
            "--" + name.replace("_", "-"), help=text, default=SUPPRESS, **how
        )


def from_flags(options: Namespace) -> Config:
    """Returns the settings of the file ``options.config``, if there is one, overridden by the flags."""
    try:
        settings = load(options.config) if options.config else {}
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if unknown := sorted(settings.keys() - Config.model_fields.keys()):
        raise ConfigError(f"{options.config}: {', '.join(unknown)}: there is no such key")
    flags = {name: value for name, value in vars(options).items() if name in Config.model_fields}
    return Config(**settings | flags)
