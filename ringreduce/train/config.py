"""What can be set: one dataclass, from which the flags, the file format and their checks are made."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

__all__ = ["Config", "ConfigError", "add_flags", "from_flags", "load_file"]


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type or out of range; the text names it."""


def setting(default: Any, text: str, least: float | None = None) -> Any:
    """A field with its line of help and its lowest value."""
    return dataclasses.field(default=default, metadata={"help": text, "least": least})


@dataclass(frozen=True)
class Config:
    """All settings of a run. Batches count samples (the GPT's are windows of ``context`` bytes) of all ranks."""

    task: Literal["gpt", "digits"] = setting(
        "gpt", "what is trained: a GPT on Python's sources, or a convnet"
    )
    layers: int = setting(4, "of the GPT", 1)
    heads: int = setting(4, "of the GPT", 1)
    width: int = setting(128, "of the GPT: of its embeddings", 1)
    context: int = setting(128, "of the GPT: bytes that it sees", 1)
    dropout: float = setting(0.0, "of the GPT", 0)
    channels: int = setting(16, "of the convnet's first layer", 1)
    text_bytes: int = setting(16 << 20, "of Python's sources, held-out files included", 1)

    batch: int = setting(32, "global batch: samples of an optimizer step, all ranks' together", 1)
    accumulation: int = setting(1, "backward passes of a rank in each step", 1)
    steps: int = setting(300, "optimizer steps", 0)
    seed: int = setting(0, "of weights, order of samples and dropout", 0)

    optimizer: Literal["adamw", "sgd"] = setting("adamw", "sgd has momentum")
    learning_rate: float = setting(3e-3, "at its highest; with --base-batch that of the base batch", 0)
    base_batch: int = setting(0, "scale the learning rate by batch / base_batch; 0: do not", 0)
    warmup: int = setting(20, "steps in which the learning rate rises linearly", 0)
    schedule: Literal["cosine", "constant"] = setting("cosine", "the learning rate after the warm-up")
    momentum: float = setting(0.9, "of sgd", 0)
    weight_decay: float = setting(0.1, "of matrices; biases and norms have none", 0)
    clip: float = setting(1.0, "highest norm of the gradient; 0: no clipping", 0)
    autocast: bool = setting(False, "compute in bfloat16 where torch deems it safe")

    bucket_mb: float = setting(1.0, "MiB of gradients that travel together", 0)
    first_bucket_mb: float = setting(0.25, "the same of the first bucket", 0)
    static_graph: bool = setting(False, "all steps use the same parameters")
    wire: Literal["float32", "bf16", "fp16"] = setting("float32", "what gradients travel as")
    compression: Literal["none", "fp16", "bf16", "int8", "sign", "topk", "powersgd"] = setting(
        "none", "how gradients are compressed"
    )
    top_fraction: float = setting(0.01, "of the gradient's values that topk sends", 0)
    matrix_rank: int = setting(4, "of powersgd's matrices", 1)
    sharded_optimizer: Literal[0, 1, 2] = setting(0, "stage of ZeRO: what is sharded over the ranks")
    sync_batch_norm: bool = setting(True, "batch norm over all ranks' samples")
    reproducible: bool = setting(False, "the same bits whatever the transport; see logical_shards")
    logical_shards: int = setting(
        0, "cut the batch into so many shards: the same bits on any number of ranks", 0
    )

    evaluate_every: int = setting(50, "steps between evaluations on held-out data; 0: only at the end", 0)
    evaluate_samples: int = setting(512, "held-out samples of an evaluation, all ranks' together", 1)
    checkpoints: str = setting("", "folder for checkpoints; none are written without it")
    checkpoint_every: int = setting(100, "steps between checkpoints; one more is written at the end", 1)
    keep: int = setting(2, "newest checkpoints that are kept", 1)
    resume: str = setting("", "a checkpoint, or auto: the newest in the folder if there is one")

    ranks: int = setting(1, "processes to start where no launcher has", 1)
    threads: int = setting(0, "of torch in each rank; 0: cores of the host / ranks on it", 0)
    timeout: float = setting(300.0, "seconds after which a rank gives up waiting for another", 1)
    log_every: int = setting(10, "steps between lines of the log", 1)
    json_log: str = setting("", "JSON-lines file")
    tensorboard: str = setting("", "folder for TensorBoard")
    plot: str = setting("", "picture of loss and of where the time went")
    trace: str = setting("", "timeline of all ranks in Chrome's format, for Perfetto")
    progress: bool = setting(True, "show a progress bar where standard error is a terminal")

    def __post_init__(self) -> None:
        hints = get_type_hints(Config)
        for field in dataclasses.fields(self):
            _check(field, hints[field.name], getattr(self, field.name))
        _check_together(self)


def _check(field: dataclasses.Field[Any], kind: Any, value: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            choices = ", ".join(map(str, get_args(kind)))
            raise ConfigError(f"{field.name}: {value!r} is none of {choices}")
        return
    # A file may say 1 for 1.0; but True is an int for Python only.
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{field.name}: {value!r} is no {kind.__name__}")
    least = field.metadata["least"]
    if least is not None and not value >= least:
        raise ConfigError(f"{field.name} must be at least {least}, not {value}")


def _check_together(config: Config) -> None:
    """What a reader of one setting alone would not see."""
    if config.width % config.heads:
        raise ConfigError(f"width: {config.width} is not a multiple of heads ({config.heads})")
    if not config.dropout < 1:
        raise ConfigError(f"dropout must be below 1, not {config.dropout}")
    if config.resume == "auto" and not config.checkpoints:
        raise ConfigError("resume: auto needs checkpoints, the folder to look into")
    _check_exchange(config)


def _check_exchange(config: Config) -> None:
    """Ways to exchange gradients that do not go with each other."""
    if config.logical_shards and config.accumulation > 1:
        raise ConfigError("accumulation: with logical_shards the shards are accumulated; leave it at 1")
    if config.logical_shards and config.batch % config.logical_shards:
        raise ConfigError(
            f"batch: {config.batch} is not a multiple of logical_shards ({config.logical_shards})"
        )
    if config.logical_shards and config.task == "digits":
        raise ConfigError("logical_shards: batch norm sees whole batches; they are for the gpt")
    ways = {
        "wire": config.wire != "float32",
        "compression": config.compression != "none",
        "logical_shards": config.logical_shards > 0,
        "sharded_optimizer 2": config.sharded_optimizer == 2,
    }
    chosen = [name for name, used in ways.items() if used]
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[1]}: does not go with {chosen[0]}; both say how gradients are exchanged")


# --- file and flags ------------------------------------------------------------------------------------------


def load_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file.

    Raises:
        ConfigError: it cannot be read, or has a key that is no setting.
    """
    try:
        text = path.read_text()
        if path.suffix == ".json":
            found = json.loads(text)
        elif path.suffix == ".toml":
            if sys.version_info < (3, 11):
                raise ConfigError(f"{path}: TOML needs Python 3.11; write it as JSON")
            import tomllib

            found = tomllib.loads(text)
        else:
            raise ConfigError(f"{path}: the name must end in .toml or .json")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ConfigError:
        raise
    except ValueError as error:  # what both parsers raise
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: a table of settings is needed")
    unknown = sorted(found.keys() - {field.name for field in dataclasses.fields(Config)})
    if unknown:
        raise ConfigError(f"{path}: no such setting: {', '.join(unknown)}")
    return found


def add_flags(parser: ArgumentParser) -> None:
    """A flag for each setting; those that are not given leave no trace in what is parsed."""
    hints = get_type_hints(Config)
    for field in dataclasses.fields(Config):
        kind = hints[field.name]
        how: dict[str, Any] = {"help": f"{field.metadata['help']} [{field.default}]", "default": None}
        if kind is bool:
            how["action"] = BooleanOptionalAction
        elif get_origin(kind) is Literal:
            how.update(choices=get_args(kind), type=type(get_args(kind)[0]))
        else:
            how.update(type=kind, metavar=kind.__name__.upper())
        parser.add_argument("--" + field.name.replace("_", "-"), **how)


def from_flags(options: Namespace, file: Path | None) -> Config:
    """The settings of the file, if there is one, under those of the flags.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = load_file(file) if file else {}
    names = [field.name for field in dataclasses.fields(Config)]
    settings |= {name: value for name in names if (value := getattr(options, name)) is not None}
    return Config(**settings)
