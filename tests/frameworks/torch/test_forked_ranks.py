"""Ranks that are forked from a program whose torch has started threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch, ringreduce

torch.set_num_threads(2)
x = torch.ones(1 << 20)
x.exp().sum()  # in two threads


def exponents(comm):
    own = x.exp().sum()
    total = comm.all_reduce(own.clone())
    return total.item() / own.item(), torch.get_num_threads()


print(ringreduce.run(exponents, 2))
"""


def test_they_compute():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert done.stdout == "[(2.0, 1), (2.0, 1)]\n", done.stderr
