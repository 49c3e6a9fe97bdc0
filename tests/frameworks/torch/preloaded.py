"""What ranks of fault_ranks.py are forked with."""

import pytest  # noqa: F401
import torch._dynamo
import torch.distributed
import torch.nn.parallel  # noqa: F401

import ringreduce.backend  # noqa: F401
import tests.frameworks.torch.fault_ranks  # noqa: F401
from tests.settled import settle

settle()
