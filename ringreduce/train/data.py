"""The data: what is on every machine that has Python (and for the digits scikit-learn)."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from ringreduce.train.config import Config, ConfigError

__all__ = ["BYTES", "CLASSES", "Windows", "load_data"]

BYTES, CLASSES = 256, 10
HELD_OUT = 20  # every so manieth file, or digit, is kept for validation
ELSEWHERE = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


def load_data(config: Config) -> tuple[Dataset[Any], Dataset[Any]]:
    """What is trained on and what is held out; pairs (input, target), the same on all ranks."""
    return _text(config) if config.task == "gpt" else _digits()


class Windows(Dataset[Any]):
    """Windows of text, one behind the other: inputs int64 [context], and as targets the byte after each of them."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text, self.context = np.frombuffer(text, np.uint8), context

    def __len__(self) -> int:
        return max(len(self.text) - 1, 0) // self.context

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        begin = index * self.context
        window = torch.from_numpy(self.text[begin : begin + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


def source_files(folder: Path) -> Iterator[Path]:
    """The standard library's Python files, in an order that is the same on every machine."""
    entries = sorted(folder.iterdir(), key=lambda path: path.name)
    for path in entries:
        if path.is_dir() and path.name not in ELSEWHERE:
            yield from source_files(path)
        elif path.suffix == ".py":
            yield path


def _text(config: Config) -> tuple[Windows, Windows]:
    """The first ``config.text_bytes`` bytes; of every 20 files one is held out."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = config.text_bytes
    for number, path in enumerate(source_files(Path(sysconfig.get_path("stdlib")))):
        content = path.read_bytes()[:left]
        parts[number % HELD_OUT == HELD_OUT - 1].append(content)
        left -= len(content)
        if left == 0:
            break
    train, held_out = (Windows(b"".join(part), config.context) for part in parts)
    if not held_out:
        raise ConfigError(
            f"text_bytes: {config.text_bytes} are too few to hold out a file and {config.context} of it"
        )
    return train, held_out


def _digits() -> tuple[TensorDataset, TensorDataset]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("task: digits needs scikit-learn: pip install 'ringreduce[train]'") from error
    images, classes = load_digits(return_X_y=True)
    x = torch.from_numpy(images.reshape(-1, 1, 8, 8) / 16).float()  # grey levels are 0 to 16
    y = torch.from_numpy(classes).long()
    # Every fifth: the digits are few, and those of one writer follow each other.
    held_out = torch.arange(len(y)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])
