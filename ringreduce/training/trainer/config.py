"""All settings: one dataclass, which defines the flags, the keys of the file and the checks."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import json
import operator
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

__all__ = ["Config", "ConfigError", "ToldError", "add_flags", "from_flags", "writing"]

OPERATORS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


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


def setting(default: Any, text: str, *limits: str) -> Any:
    """Returns a dataclass field with its help text and its limits, such as ``">= 1"``."""
    return dataclasses.field(default=default, metadata={"help": text, "limits": limits})


@dataclass(frozen=True)
class RareExchange:
    """Low communication: the ranks train on their own, and synchronise now and then."""

    low_communication: Literal["none", "local_sgd", "diloco", "streaming_diloco"] = setting(
        "none", "how the ranks' models are synchronised, instead of their gradients"
    )
    local_steps: int = setting(20, "steps between two synchronisations", ">= 1")
    synchronous_steps: int = setting(0, "steps at the start that local_sgd synchronises one by one", ">= 0")
    adaptive_steps: bool = setting(False, "let slower ranks skip steps of local_sgd and diloco")
    outer_learning_rate: float = setting(0.7, "learning rate of DiLoCo's outer optimizer", ">= 0", "< 1e38")
    outer_momentum: float = setting(0.9, "its Nesterov momentum", ">= 0", "< 1")
    fragments: int = setting(4, "parts of the model that streaming_diloco synchronises in turn", ">= 1")
    overlap: int = setting(1, "steps in which a fragment's outer gradients travel", ">= 0")
    mixing: float = setting(
        0.5, "share of its own parameters that a rank keeps if there is an overlap", ">= 0", "<= 1"
    )


@dataclass(frozen=True)
class UnequalRanks:
    """Unequal ranks: shares of the batch that follow the ranks' speed."""

    balance: bool = setting(False, "give faster ranks more samples of each batch")
    balance_every: int = setting(10, "steps between two comparisons of the ranks' speeds", ">= 1")


@dataclass(frozen=True)
class Config(RareExchange, UnequalRanks):
    """All settings of a run.

    Batch sizes count the samples of all ranks. A sample of the GPT is ``context`` bytes long.
    """

    task: Literal["gpt", "digits"] = setting("gpt", "a GPT on Python's sources, or a convnet on digits")
    layers: int = setting(4, "layers of the GPT", ">= 1")
    heads: int = setting(4, "attention heads of the GPT", ">= 1")
    width: int = setting(128, "size of the GPT's embeddings", ">= 1")
    context: int = setting(128, "context length of the GPT in bytes", ">= 1")
    dropout: float = setting(0.0, "dropout of the GPT", ">= 0", "< 1")
    channels: int = setting(16, "channels of the convnet's first layer", ">= 1")
    text_bytes: int = setting(16 << 20, "bytes of Python's sources to use, including held-out files", ">= 1")

    batch: int = setting(32, "global batch: samples in an optimizer step, over all ranks", ">= 1")
    accumulation: int = setting(1, "backward passes per rank and step", ">= 1")
    steps: int = setting(300, "optimizer steps", ">= 0")
    seed: int = setting(0, "seed of the weights, sample order and dropout", ">= 0", f"< {1 << 64}")

    optimizer: Literal["adamw", "sgd", "lars", "lamb"] = setting(
        "adamw", "the optimizer; sgd and lars have momentum; lars and lamb are for large batches"
    )
    learning_rate: float = setting(3e-3, "peak; with --base-batch, that of the base batch", ">= 0", "< 1e38")
    base_batch: int = setting(0, "scale the learning rate by batch / base_batch; 0: off", ">= 0")
    batch_scaling: Literal["linear", "sqrt"] = setting("linear", "scale it by this quotient, or by its root")
    warmup: int = setting(20, "steps in which the learning rate rises linearly", ">= 0")
    schedule: Literal["cosine", "constant"] = setting("cosine", "learning rate after the warm-up")
    momentum: float = setting(0.9, "momentum of sgd and lars", ">= 0", "< 1")
    trust_coefficient: float = setting(0.001, "trust coefficient of lars", "> 0", "< inf")
    weight_decay: float = setting(
        0.1, "weight decay of matrices; biases and norms have none", ">= 0", "< 1e38"
    )
    clip: float = setting(1.0, "highest norm of the gradient; 0: no clipping", ">= 0")
    autocast: bool = setting(False, "compute in bfloat16 where torch considers it safe")

    bucket_mb: float = setting(1.0, "MiB of gradients that are sent together", "> 0", "< inf")
    first_bucket_mb: float = setting(0.25, "MiB of gradients in the first bucket", "> 0", "< inf")
    static_graph: bool = setting(False, "assume that all steps use the same parameters")
    wire: Literal["float32", "bf16", "fp16", "int8", "fp8"] = setting(
        "float32", "format in which gradients, or DiLoCo's outer gradients, are sent"
    )
    compression: Literal["none", "fp16", "bf16", "int8", "sign", "topk", "powersgd"] = setting(
        "none", "compression of gradients"
    )
    top_fraction: float = setting(0.01, "fraction of the gradient's values that topk sends", "> 0", "<= 1")
    matrix_rank: int = setting(4, "rank of powersgd's matrices", ">= 1")
    sharded_optimizer: Literal[0, 1, 2] = setting(0, "ZeRO stage: what is sharded over the ranks")
    parameter_server: bool = setting(
        False, "push gradients to servers on all ranks, instead of averaging them"
    )
    staleness: int = setting(
        0, "steps that a rank may be ahead, with parameter_server; -1: no bound", ">= -1"
    )
    sync_batch_norm: bool = setting(True, "batch norm over the samples of all ranks")
    reproducible: bool = setting(False, "same bits over any transport; implies --threads 1 by default")
    logical_shards: int = setting(
        0, "shards of the batch, for the same bits on any number of ranks; implies --threads 1", ">= 0"
    )

    evaluate_every: int = setting(50, "steps between evaluations; 0: only at the end", ">= 0")
    evaluate_samples: int = setting(512, "held-out samples in an evaluation, over all ranks", ">= 1")
    checkpoints: str = setting("", "folder for checkpoints; without it, none are written")
    checkpoint_every: int = setting(100, "steps between checkpoints; the last step writes one too", ">= 1")
    keep: int = setting(2, "number of checkpoints to keep", ">= 1")
    resume: str = setting("", "a checkpoint, or auto for the newest intact one in the folder, if any")

    elastic: int = setting(
        0, "go on while at least this many ranks are left, and let others in; 0: a loss ends the run", ">= 0"
    )
    elastic_copies: int = setting(
        1, "copies of each rank's part of a sharded optimizer, with elastic", ">= 0"
    )

    ranks: int = setting(1, "processes to start if there is no launcher", ">= 1")
    threads: int = setting(
        0, "torch threads per rank; 0: as in the checkpoint, or the host's cores / ranks", ">= 0", "<= 1024"
    )
    timeout: float = setting(300.0, "seconds after which a rank stops waiting for another", ">= 1")
    log_every: int = setting(10, "steps between lines of the log", ">= 1")
    json_log: str = setting("", "log file in JSON-lines format")
    tensorboard: str = setting("", "folder for TensorBoard")
    plot: str = setting("", "file for a plot of the loss and of the time of a step")
    trace: str = setting("", "file for a timeline of all ranks in Chrome's format, for Perfetto")
    progress: bool = setting(True, "show a progress bar if standard error is a terminal")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        _check_together(self)

    @property
    def fixed_threads(self) -> int:
        """The number of torch threads that the settings require, or 0. torch's sums depend on it in the last bits."""
        return self.threads or int(self.reproducible or self.logical_shards > 0)


KINDS = get_type_hints(Config)
PARTS = (RareExchange, UnequalRanks)


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    kind = KINDS[field.name]
    choices = get_args(kind)
    # A file may say 1 for 1.0. True counts as an int in Python, but not here.
    kinds = tuple(map(type, choices)) or ((int, float) if kind is float else (kind,))
    right_kind = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
    if choices and not (right_kind and value in choices):
        raise ConfigError(f"{field.name} must be one of {', '.join(map(str, choices))}, not {value!r}")
    if not right_kind:
        raise ConfigError(f"{field.name} must be of type {kind.__name__}, not {value!r}")
    for limit in field.metadata["limits"]:
        sign, bound = limit.split()
        if not OPERATORS[sign](value, kind(bound)):
            raise ConfigError(f"{field.name} must be {limit}, not {value}")


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


def load_file(path: Path) -> dict[str, Any]:
    """Reads the settings in a TOML or JSON file.

    Raises:
        ConfigError: The file cannot be read, or has a key that is not a setting.
    """
    if path.suffix not in (".json", ".toml"):
        raise ConfigError(f"{path}: the name must end in .toml or .json")
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else importlib.import_module("tomllib").loads(text)
    except ImportError as error:
        raise ConfigError(f"{path}: TOML needs Python 3.11 or later; use JSON instead") from error
    except (OSError, ValueError) as error:  # both parsers raise ValueError
        raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: the file must hold a table of settings")
    if unknown := sorted(found.keys() - KINDS.keys()):
        raise ConfigError(f"{path}: no such setting: {', '.join(unknown)}")
    return found


def add_flags(parser: ArgumentParser) -> None:
    """Adds a flag for each setting. Flags that are not given are absent from the parsed options."""
    groups: dict[str, Any] = {}
    for part in PARTS:
        groups |= dict.fromkeys(part.__annotations__, parser.add_argument_group(*_title(part)))
    for field in dataclasses.fields(Config):
        kind = KINDS[field.name]
        choices = get_args(kind)
        how: dict[str, Any] = {"action": BooleanOptionalAction}
        if choices:
            how = {"choices": choices, "type": type(choices[0])}
        elif kind is not bool:
            how = {"type": kind, "metavar": kind.__name__.upper()}
        text = f"{field.metadata['help']} [{field.default}]"
        to = groups.get(field.name, parser)
        to.add_argument("--" + field.name.replace("_", "-"), help=text, default=SUPPRESS, **how)


def _title(part: type) -> tuple[str, str]:
    """Returns the title and description of a part's flags: what its docstring says before and after the colon."""
    title, _, description = (part.__doc__ or "").partition(": ")
    return title, description


def from_flags(options: Namespace) -> Config:
    """Returns the settings of the file ``options.config``, if there is one, overridden by the flags."""
    settings = load_file(options.config) if options.config else {}
    return Config(**settings | {name: value for name, value in vars(options).items() if name in KINDS})
