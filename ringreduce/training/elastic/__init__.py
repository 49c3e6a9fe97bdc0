"""Training that continues when ranks are lost or join, without restarts: docs/elastic.md.

Needs torch.
"""

from ringreduce.training.elastic.checkpoints import CheckpointError, Checkpoints
from ringreduce.training.elastic.default_process_group import init_process_group
from ringreduce.training.elastic.first_group import start
from ringreduce.training.elastic.fully_shard import FullyShard
from ringreduce.training.elastic.loop import Step, steps
from ringreduce.training.elastic.losses import StateMismatch
from ringreduce.training.elastic.state import State
from ringreduce.training.sharded_optimizer.regroup import StateLost

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "FullyShard",
    "State",
    "StateLost",
    "StateMismatch",
    "Step",
    "init_process_group",
    "start",
    "steps",
]
