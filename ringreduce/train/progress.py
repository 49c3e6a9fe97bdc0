"""What rank 0 tells while it trains: progress bar, JSON lines, TensorBoard."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from ringreduce.train.config import Config, ConfigError

__all__ = ["Progress", "Row"]

Row = dict[str, Any]


class Progress:
    """Takes rows and shows them; on ranks other than 0 it does nothing.

    Attributes:
        rows: what was reported so far, on rank 0.
    """

    def __init__(self, config: Config, shown: bool, first_step: int = 0) -> None:
        self.rows: list[Row] = []
        self._shown = shown
        self._bar: Any = None
        self._file: TextIO | None = None
        self._board: Any = None
        if shown:
            self._open(config, first_step)

    def _open(self, config: Config, first_step: int) -> None:
        if config.tensorboard:
            self._board = _tensorboard(config.tensorboard)
        if config.json_log:
            path = Path(config.json_log)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a" if first_step else "w")
        with contextlib.suppress(ImportError):
            tqdm = importlib.import_module("tqdm").tqdm
            # None: where standard error is no terminal there is no bar, and log files stay short.
            hidden = None if config.progress else True
            self._bar = tqdm(total=config.steps, initial=first_step, disable=hidden, unit="step")

    def report(self, row: Row) -> None:
        """Takes a row; its numbers go to the log and to TensorBoard, and with ``step`` the bar moves there."""
        if not self._shown:
            return
        self.rows.append(row)
        if self._file is not None:
            print(json.dumps(row), file=self._file, flush=True)
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, row["step"])
        if self._bar is not None and "loss" in row:
            self._bar.set_postfix_str(_short(row), refresh=False)
            self._bar.update(row["step"] - self._bar.n)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
        elif self._shown:
            print(text, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._bar, self._file, self._board):
            if one is not None:
                one.close()


def _short(row: Row) -> str:
    rate, unit = next(
        (row[f"{unit}_per_s"], unit) for unit in ("tokens", "samples") if f"{unit}_per_s" in row
    )
    hidden, exposed = 1e3 * row["hidden_s"], 1e3 * row["exposed_s"]
    times = f"communication {hidden:.1f} ms hidden + {exposed:.1f} ms exposed"
    return f"loss {row['loss']:.3f}, {rate:.0f} {unit}/s, {times}"


def _tensorboard(folder: str) -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder)
    except ImportError as error:
        raise ConfigError("tensorboard: it is not installed: pip install tensorboard") from error
