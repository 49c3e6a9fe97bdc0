"""The errors that docs/torch.md shows are those that ranks get."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
import torch.distributed as dist

from tests.frameworks.torch.fault_ranks import Ranks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "torch.md"
SHOWN = dict(re.findall(r"<!-- output: (\w+) -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL))


def _fail(note, how):
    x, odd = torch.ones(8), dist.get_rank() == 1
    dist.all_reduce(torch.ones(5))
    if how == "mismatch":
        dist.all_reduce(x.int() if odd else x)
    if how == "skip":
        if not odd:
            dist.broadcast(x, 0)
        dist.all_reduce(torch.ones(9))
    if how == "dead" and odd:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "timeout" and odd:
        time.sleep(4)
    else:
        dist.all_reduce(x)


def _comparable(text: str) -> str:
    """Without line breaks, the algorithms, which depend on the machine, and who was the first to notice."""
    text = re.sub(r" by \w+|; rank \d noticed this in a message from rank \d", "", " ".join(text.split()))
    return re.sub(r"rank \d (timed out|was in)", r"rank N \1", text)


@pytest.mark.parametrize("how", SHOWN)
def test_error_is_as_shown(how, tmp_path):
    first, *_ = Ranks(tmp_path, _fail, 3, how, timeout=2 if how == "timeout" else 60).outcomes()
    assert first is not None
    assert first.kind == "DistBackendError"
    assert _comparable(first.text) == _comparable(SHOWN[how])


def test_all_kinds_are_shown():
    assert set(SHOWN) == {"mismatch", "skip", "dead", "timeout"}
